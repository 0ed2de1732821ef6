"""Published figures stand beside ours and change nothing."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from ablate.reports import confirmation, literature, sections
from ablate.reports.report import assemble
from ablate.sweeps.spec.parts import Published

from .conftest import FRESH


def test_ours_is_the_mean_of_that_metric_over_fresh_seeds(full):
    first, second = literature.compare_published(full)
    pre, mix = first.rows
    ours = {arm: np.exp([FRESH[arm][seed] for seed in FRESH["pre"]]) for arm in ("pre", "mix")}
    assert (first.source, first.metric) == ("Table 2 of a paper", "val/perplexity")
    assert pre.ours.mean == pytest.approx(ours["pre"].mean())
    assert mix.difference.interval == pytest.approx(
        tuple(stats.ttest_rel(ours["mix"], ours["pre"]).confidence_interval(0.95))
    )
    assert (pre.kind, pre.difference, pre.published_difference) == ("confirmed", None, None)
    assert mix.published_difference == pytest.approx(-0.5)
    assert second.rows[1].published_difference == pytest.approx(6.85)


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
    assert section.table.rows == [["mix", "-", "-", "-", "-", "0.5000", "-"]]


def test_they_are_not_in_the_verdict(full, confirmed):
    verdicts = [
        confirmation.describe_confirmed(record, confirmation.compare_arms(record)) for record in (full, confirmed)
    ]
    assert verdicts[0] == verdicts[1]


def test_perplexities_by_another_tokenizer_are_told_apart(full, tmp_path, without_figures):
    quoted = [Published(source=name, metric="val/perplexity", tokenizer=name, values={"mix": 20.0})
              for name in ("t5-base", "topics")]  # fmt: skip
    record = replace(full, spec=full.spec.model_copy(update={"published": quoted}))
    assert [source.tokenizers for source in literature.compare_published(record)] == [("t5-base", "topics"), None]
    first, second = sections.tabulate_published(assemble(record, tmp_path))
    assert any("tokens of t5-base, ours in those of topics" in text for text in first.sentences)
    assert not any("tokenizer" in text for text in second.sentences)
