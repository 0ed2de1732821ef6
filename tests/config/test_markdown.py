"""What somebody else has named is shown by a reader of Markdown letter by letter."""

import html
import re

import markdown
import pytest

from ablate.config.markdown import build_table, escape, format_code

NAMES = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[click](javascript:alert(1))",
    "![x](javascript:alert(1))",
    r"\[click](javascript:alert(1))",
    r"\\[click](javascript:alert(1))",
    "<javascript:alert(1)>",
    "[click][1] [1]: javascript:alert(1)",
    "[1]: javascript:alert(1)",
    '{onclick="alert(1)"}',
    "p*st and p*st",
    "_pre_ val_loss __x__",
    "`code` ``x``",
    "# heading",
    "a | b",
    "&lt;b&gt; &amp; 1 < 2",
]


def render(text):
    return markdown.markdown(text, extensions=["tables", "attr_list", "md_in_html", "admonition", "toc"])


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name):
    for text in (escape(name), f"**{escape(name)}**", f"- {escape(name)}", build_table(["arm"], [[escape(name)]])):
        page = render(text)
        assert not re.search(r"<(?!/?(p|strong|ul|li|table|thead|tbody|tr|td|th)>)", page), page
        assert name in html.unescape(re.sub(r"<[^>]*>", "", page))
    page = render(f"Settings: {format_code(name)}.")
    assert page == f"<p>Settings: <code>{html.escape(name, quote=False)}</code>.</p>"


def test_numbers_and_names_of_arms_stay_readable_in_the_source():
    text = "pre_small: +0.28 ± 0.19 (n = 4), -0.09 to 0.65 [val/loss_ema]; x-1.5"
    assert escape(text) == text
