"""Tables on a terminal: folded between words only."""

import io

import pytest
from rich.console import Console

from ablate.cli.output import build_table


@pytest.mark.parametrize("width", [30, 50, 80, 200])
def test_no_word_is_broken_at_any_width(width):
    rows = [
        ["deepnorm", "N((2L)^(1/4) x + f(x))", "Wang et al. 2022, arXiv 2203.00555"],
        ["pre", "x + f(N(x))", "Xiong et al. 2020, arXiv 2002.04745"],
    ]
    console = Console(file=io.StringIO(), width=width, soft_wrap=True)
    console.print(build_table(["placement", "rule", "source"], rows))
    text = console.file.getvalue()
    for word in " ".join(cell for row in rows for cell in row).split():
        assert word in text.split()
    assert width < 50 or all(len(line) <= width for line in text.splitlines())


def test_brackets_are_text_and_numbers_stand_to_the_right():
    console = Console(file=io.StringIO(), width=80)
    console.print(build_table(["name", "count"], [["[red]x[/red]", "7"], ["y", "1,000"]], right=["count"]))
    assert console.file.getvalue().splitlines()[1:] == ["[red]x[/red]      7", "y             1,000"]
