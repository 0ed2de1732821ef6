"""Published figures stand beside ours and change nothing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.reports import literature, sections
from ablate.reports.confirmation import describe_verdict
from ablate.reports.report import assemble
from ablate.sweeps.comparison import compare_record
from ablate.sweeps.spec.parts import Published

from .conftest import FRESH
from .hand_built import STUCK, build_record


def test_ours_is_the_mean_of_that_metric_over_fresh_seeds(full):
    first, second = literature.compare_published(full)
    pre, mix = first.rows
    ours = {arm: np.exp([FRESH[arm][seed] for seed in FRESH["pre"]]) for arm in ("pre", "mix")}
    assert (first.source, first.metric) == ("Table 2 of a paper", "val/perplexity")
    assert pre.ours.mean == pytest.approx(ours["pre"].mean())
    assert mix.difference.interval == pytest.approx(
        tuple(stats.ttest_rel(ours["mix"], ours["pre"]).confidence_interval(1 - 0.8 * 0.05 / 2)),  # two comparisons
        rel=1e-3,
    )
    assert (pre.kind, pre.difference, pre.published_difference) == ("fresh seeds", None, None)
    assert mix.published_difference == pytest.approx(-0.5)
    assert second.rows[1].published_difference == pytest.approx(6.85)


def test_of_the_objective_it_is_what_the_verdict_rests_on(full):
    quoted = Published(source="elsewhere", metric="val/loss", values={"pre": 2.0, "post": 2.0, "mix": 2.0})
    record = replace(full, spec=full.spec.model_copy(update={"published": [quoted]}))
    compared = compare_record(record)
    for row in literature.compare_published(record)[0].rows:
        assert (row.ours, row.failures) == (compared[row.arm].estimate, compared[row.arm].failures)
        assert row.difference == compared[row.arm].difference


def test_an_arm_that_failed_on_every_fresh_seed_is_not_told_by_its_search(tmp_path, without_figures):
    quoted = [{"source": "elsewhere", "metric": "val/loss", "values": {"pre": 2.0, "post": 1.9, "mix": 1.8}}]
    values = {"pre": [2.1, 2.2, 2.15], "post": [None, STUCK, None], "mix": [STUCK, 2.0, 2.05]}
    record = build_record(values, promised={"post": 1.5}, published=quoted)
    _, post, mix = literature.compare_published(record)[0].rows
    assert (post.kind, post.ours, post.difference, post.failures.failed) == ("fresh seeds", None, None, 3)
    assert (mix.ours.mean, mix.ours.n) == (pytest.approx(2.025), 2)
    (section,) = sections.tabulate_published(assemble(record, tmp_path))
    assert section.table.rows[1] == ["post", "fresh seeds", "-", "3 of 3", "-", "-", "1.900", "-0.100"]


def test_without_confirmation_it_is_the_best_of_the_search(full):
    found = literature.compare_published(replace(full, confirmed={}))[0].rows
    assert [row.kind for row in found] == ["best of the search"] * 2
    assert found[1].ours.mean == pytest.approx(np.exp(1.712))
    assert found[1].difference.mean == pytest.approx(np.exp(1.712) - np.exp(1.735))
    assert found[1].difference.half_width is None


def test_unlike_figures_have_no_difference_and_missing_ones_are_told_so(full, tmp_path, without_figures):
    alone = replace(full, confirmed={"mix": full.confirmed["mix"]})
    assert literature.compare_published(alone)[0].rows[1].difference is None
    quoted = Published(source="elsewhere", metric="val/accuracy", values={"mix": 0.5})
    record = replace(full, spec=full.spec.model_copy(update={"published": [quoted]}))
    row = literature.compare_published(record)[0].rows[0]
    assert (row.ours, row.kind, row.difference, row.published_difference) == (None, "", None, None)
    (section,) = sections.tabulate_published(assemble(record, tmp_path))
    assert section.table.rows == [["mix", "-", "-", "-", "-", "0.500", "-"]]


def test_they_are_not_in_the_verdict(full, confirmed):
    verdicts = [describe_verdict(record, compare_record(record)) for record in (full, confirmed)]
    assert verdicts[0] == verdicts[1]


def test_perplexities_by_another_tokenizer_are_told_apart(full, tmp_path, without_figures):
    quoted = [Published(source=name, metric="val/perplexity", tokenizer=name, values={"mix": 20.0})
              for name in ("t5-base", "topics")]  # fmt: skip
    record = replace(full, spec=full.spec.model_copy(update={"published": quoted}))
    assert [source.tokenizers for source in literature.compare_published(record)] == [("t5-base", "topics"), None]
    first, second = sections.tabulate_published(assemble(record, tmp_path))
    assert any("the tokenizer t5-base, ours use topics" in text for text in first.sentences)
    assert not any("tokenizer" in text for text in second.sentences)
