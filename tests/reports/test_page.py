"""The page: it says what the JSON says, holds all that it shows, and lets nothing of the sweep through as markup."""

import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import yaml
from run_table import put

from ablate.config.formatting import format_count, format_number, format_setting
from ablate.reports import sections
from ablate.reports.report import assemble, report
from ablate.reports.section import Column, Table
from ablate.reports.terminal import to_text

from .hand_built import build_record

VOID = {"meta", "img"}
BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Page(HTMLParser):
    """Checks that tags are closed in order, and keeps links, cells and the text of each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.tables, self.tags, self.texts = [], [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def table(self, *header):
        """The rows of the first table whose columns begin with `header`, by the arm in the first cell."""
        found = next(rows for rows in self.tables if tuple(rows[0][: len(header)]) == header)
        plain = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in found]
        return {row[0]: dict(zip(plain[0], row, strict=True)) for row in plain[1:]}


@pytest.fixture(scope="module")
def made(made_of_full):
    return made_of_full


@pytest.fixture(scope="module")
def page(made):
    return Page(made.page())


def test_the_page_needs_nothing_beside_it(made, page):
    assert page.tags.count("svg") == len(made.figures) == 6
    assert page.links == []
    assert not {"script", "link", "iframe", "object", "img"} & set(page.tags)
    text = made.page().replace("http://www.w3.org/", "")
    for far in ("@import", "url(h", "http://", "https://"):
        assert far not in text
    assert len(text) < 500_000


def test_what_answers_comes_first_and_the_rest_is_folded(made):
    text = made.page()
    order = [
        *("Verdict against pre", made.verdict[:40], "Results on fresh seeds"),
        *('id="verdict"', 'id="learning_rate"', 'id="bands"'),
        *("<details>", "Search results (best of", 'id="alpha"', "Compute per arm", "The sweep file"),
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert text.index("<details>") < text.index("Learning-rate sensitivity")


def test_a_point_says_what_it_is(made, page):
    titles = page.texts["title"]
    assert "pre, seed 8: 2.100" in titles
    assert any(title.startswith("mix: -0.046") for title in titles)
    assert any(title.startswith("mix, trial 3: 1.712 at 0.0008") for title in titles)


@pytest.mark.browser
@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt-get install chromium)")
def test_a_browser_shows_the_page_offline_at_any_width(made, tmp_path):
    from playwright.sync_api import sync_playwright

    file = tmp_path / "page.html"
    file.write_text(made.page(), encoding="utf-8")
    said, asked = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        assert page.locator("#verdict svg").is_visible()
        assert not page.locator("#alpha svg").is_visible()  # it is folded
        page.locator("summary", has_text="Search").click()
        assert page.locator("#alpha svg").is_visible()
        for width in (1440, 800, 400):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        browser.close()
    assert said == []
    assert all(url.startswith("file:") for url in asked), asked


def test_a_report_without_figures_has_a_page_too(tmp_path):
    record = build_record({"pre": [2.10, 2.14, 2.11], "post": [2.05, 2.10, 2.06]})
    made = assemble(record, tmp_path / "figures", draw=False)
    assert made.figures == []
    assert not (tmp_path / "figures").exists()
    assert 'id="verdict"' in made.page()


def test_the_tables_have_the_numbers_of_the_json(made, page):
    arms = made.to_dict()["arms"]
    fresh, search = page.table("arm", "verdict"), page.table("arm", "finished")
    costs, rates = page.table("arm", "search"), page.table("arm", "sensitivity")
    for arm, told in arms.items():
        estimate, failures, versus = (told["confirmed"][key] for key in ("estimate", "failures", "versus"))
        less, kind = versus and versus["difference"], told["confirmed"]["kind"]
        left_out = f", {versus['left_out']} left out" if versus and versus["left_out"] else ""
        width = f" (n={estimate['n']})"
        assert kind == {"pre": "baseline", "post": "undecided", "mix": "better"}[arm]
        assert fresh[arm]["verdict"] == {"undecided": "inconclusive with 5 seeds"}.get(kind, kind)
        assert fresh[arm]["seeds"] == f"{len(told['confirmed']['outcomes'])}/5"
        assert fresh[arm]["failed"].startswith(f"{failures['diverged'] + failures['stuck']} of {failures['n']}")
        mean, half = estimate["mean"], estimate["half_width"]
        assert (
            fresh[arm]["val/loss"]
            == {
                "pre": f"{mean:.3f} ± {half:.3f}{width}",
                "post": f"{mean:.2f} ± {half:.2f}{width}",
                "mix": f"{mean:.3f} ± {half:.3f}{width}",
            }[arm]
        )
        digits = {"post": 2, "mix": 4}.get(arm)
        assert fresh[arm]["difference to pre"] == (
            f"{less['mean']:+.{digits}f} ± {less['half_width']:.{digits}f} (n={less['n']}{left_out})" if less else "-"
        )
        assert search[arm]["val/loss"] == format_number(told["best"]["value"])
        assert float(search[arm]["lr"]) == told["best"]["params"]["optimizer.lr"]
        assert search[arm]["/".join(sections.RARE)] == "/".join(str(told["counts"][s]) for s in sections.RARE)
        assert costs[arm]["search"].split(", ")[1] == format_count(told["cost"]["items"])
        assert costs[arm]["confirmation"].split(", ")[1] == format_count(told["confirmation_cost"]["items"])
        assert rates[arm]["sensitivity"] == format_number(told["sensitivity"]["value"])
    trials = next(rows for rows in page.tables if rows[0][:2] == ["arm", "trial"])
    assert len(trials) - 1 == len(made.to_dict()["trials"])
    assert made.verdict in page.texts["p"]
    assert yaml.safe_load("".join(page.texts["pre"][:1])) == made.record.spec.to_tree()


def test_terminal_and_page_have_the_same_tables_and_sentences(made, page):
    text = to_text(made.document, 400)
    for row in (row for table in page.tables for row in table if table[0][0] != "fact"):
        assert any(line.split() == " ".join(row).split() for line in text.splitlines()), row
    sentences = [text for part in sections.PARTS for section in part.tabulate(made) for text in section.sentences]
    assert all(sentence in page.texts["p"] and sentence in text for sentence in sentences)


def test_tokens_are_those_of_all_trials(made):
    arms = made.to_dict()["arms"]
    assert arms["pre"]["cost"] == {"trials": 8, "items": 8 * 200 * 1024, "seconds": sum(61.5 + i for i in range(8))}
    assert arms["mix"]["cost"]["items"] == 1024 * (
        6 * 200 + 80 + 100 + 3
    )  # the failed one had updates of the same size
    assert made.to_dict()["items"] == "tokens"


def test_what_the_sweep_says_is_no_markup(full, tmp_path, without_figures):
    spec = full.spec.model_copy(
        update={
            "arms": {"<b>": full.spec.all_arms["pre"], "post": full.spec.all_arms["post"]},
            "experiment": {**full.spec.experiment, "note": "</pre><script>alert(1)</script>"},
            "baseline": "<b>",
            "published": [],
        }
    )
    trials = {"<b>": [replace(t, arm="<b>", reason="<i>") for t in full.search("pre")], "post": full.search("post")}
    fresh = {"<b>": [replace(t, arm="<b>") for t in full.fresh("pre")], "post": full.fresh("post")}
    made = assemble(put(full, spec=spec, trials=trials, confirmed=fresh), tmp_path)
    parsed = Page(made.page())
    assert not {"b", "i"} & set(parsed.tags)
    assert "script" not in parsed.tags
    assert "<b>" in parsed.table("arm", "verdict")
    assert "</pre><script>alert(1)</script>" in "".join(parsed.texts["pre"])


@pytest.mark.parametrize("kind", ["one arm", "nothing completed", "accuracy", "without facts"])
def test_there_is_a_page_of_every_sweep(spec, writer, record, tmp_path, kind):
    if kind == "one arm":
        writer({"name": "demo", "search": {"optimizer.lr": [1e-3, 1e-2]}}).add("all", {"optimizer.lr": 1e-3}, 1.9)
    elif kind == "nothing completed":
        writer(spec).add("pre", {"optimizer.lr": 1e-3}, status="failed", reason="out of memory")
    elif kind == "accuracy":
        objective = {"metric": "val/accuracy", "direction": "maximize"}
        sweep = writer({**spec, "experiment": {"model": "vit"}, "objective": objective})
        for lr in (1e-3, 2e-3, 3e-3):
            sweep.add(
                "pre", {"optimizer.lr": lr}, 0.9 - lr, items_per_update=64, step=10, metrics={"val/accuracy": 0.9}
            )
    made = assemble(record, tmp_path) if kind == "without facts" else report("demo", log=False)
    parsed = Page(made.page())
    assert made.verdict in parsed.texts["p"]
    assert parsed.table("arm", "search")
    assert made.to_dict()["items"] == {"accuracy": "images"}.get(kind, "updates")
    assert all(arm["sensitivity"] is None for arm in made.to_dict()["arms"].values())


def test_settings_share_a_column_where_there_is_no_room():
    cells = Table(
        [
            Column("arm", ["a", "b"], words=True),
            Column("lr", [0.1, 0.2], format_setting, is_setting=True),
            Column("alpha", [None, 0.5], format_setting, is_setting=True),
            Column("failed", ["0", "2"]),
        ]
    )
    joined = cells.join_settings()
    assert joined.header == ["arm", "settings", "failed"]
    assert joined.rows == [["a", "lr=0.1", "0"], ["b", "lr=0.2 alpha=0.5", "2"]]
