"""The page: it says what the JSON says, holds all that it shows, and lets nothing of the sweep through as markup."""

import base64
import gzip
import json
from dataclasses import replace
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from run_table import put

from ablate.config.formatting import format_count, format_number
from ablate.reports import sections
from ablate.reports.report import assemble, report
from ablate.reports.table import COUNTS, SETTINGS, Column, Table
from ablate.reports.terminal import to_text
from ablate.sweeps.spec.sweep import Sweep

VOID = {"meta", "img"}


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
    assert len(page.links) == page.tags.count("img") == 4  # of three figures in front and of alpha's, without scripts
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert page.tags.count("script") == 3
    assert not {"link", "iframe", "object"} & set(page.tags)
    text = made.page()
    for far in ("@import", "url(", "http://", "https://", "fetch(", "sendChartToCloud"):
        assert far not in text


def test_the_page_carries_the_library_whole(page):
    _, packed, _ = page.texts["script"]
    assert (
        gzip.decompress(base64.b64decode(packed))
        == (Path(find_spec("plotly").origin).with_name("package_data") / "plotly.min.js").read_bytes()
    )


def test_what_answers_comes_first_and_the_rest_is_folded(made):
    text = made.page()
    order = [
        *("Verdict against pre", made.verdict[:40], "Results on fresh seeds"),
        *('id="arms"', 'id="parameter-learning_rate"', 'id="curves"'),
        *("<details>", "Search results (best of", "Compute per arm", "The sweep file"),
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert text.index("<details>") < text.index("Learning-rate sensitivity")


def test_the_tables_have_the_numbers_of_the_json(made, page):
    arms = made.to_dict()["arms"]
    fresh, search = page.table("arm", "verdict"), page.table("arm", "finished")
    costs, rates = page.table("arm", "runs"), page.table("arm", "sensitivity")
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
        assert [int(search[arm][s]) for s in sections.RARE] == [told["counts"][s] for s in sections.RARE]
        assert costs[arm]["tokens"] == format_count(told["cost"]["items"])
        assert costs[arm]["confirmation tokens"] == format_count(told["confirmation_cost"]["items"])
        assert rates[arm]["sensitivity"] == format_number(told["sensitivity"]["value"])
    trials = next(rows for rows in page.tables if rows[0][:2] == ["arm", "trial"])
    assert len(trials) - 1 == len(made.to_dict()["trials"])
    assert made.verdict in page.texts["p"]
    assert yaml.safe_load("".join(page.texts["pre"][:1])) == made.record.spec.to_tree()


def test_the_sweep_file_on_the_page_makes_the_same_sweep(made, page):
    assert Sweep.from_tree(yaml.safe_load(page.texts["pre"][0])).to_tree() == made.record.spec.to_tree()


def test_terminal_and_page_have_the_same_tables_and_sentences(made, page):
    text = to_text(made, 400)
    for row in (row for table in page.tables for row in table):
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
    assert parsed.tags.count("script") == 3
    assert "<b>" in parsed.table("arm", "verdict")
    assert "</pre><script>alert(1)</script>" in "".join(parsed.texts["pre"])
    charts = json.loads(parsed.texts["script"][0])
    assert "&lt;b&gt;" in charts["arms"]["layout"]["yaxis"]["ticktext"][0]  # Plotly reads <b> as bold


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
    assert parsed.table("arm", "runs")
    assert made.to_dict()["items"] == {"accuracy": "images"}.get(kind, "updates")
    assert all(arm["sensitivity"] is None for arm in made.to_dict()["arms"].values())


def test_columns_merge_where_there_is_no_room():
    cells = Table(
        [
            Column("arm", ["a", "b"], words=True),
            Column("lr", ["0.1", "0.2"], merge=SETTINGS),
            Column("alpha", ["-", "0.5"], merge=SETTINGS),
            Column("pruned", ["1", "0"], merge=COUNTS),
            Column("failed", ["0", "2"], merge=COUNTS),
        ]
    )
    assert cells.merge_at(0) == cells
    assert cells.merge_at(1).header == ["arm", "lr", "alpha", "pruned/failed"]
    assert cells.merge_at(2).header == ["arm", "settings", "pruned/failed"]
    assert cells.merge_at(2).rows == [["a", "lr=0.1", "1/0"], ["b", "lr=0.2 alpha=0.5", "0/2"]]
