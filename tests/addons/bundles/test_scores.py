"""Downstream scores of a study in its bundle: they come back as they were, and its verdict counts them."""

import gzip
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from bundles.conftest import build_tree, publish_in, run_in_memory
from bundles.test_records import pass_through_json
from bundles.test_verify import change, list_fresh, refuse, repeat
from run_table import by_arm, put

from ablate.addons.bundles import files, studies
from ablate.addons.bundles.publish import publish, publish_anew
from ablate.addons.bundles.records import judge
from ablate.addons.bundles.verify import verify
from ablate.config.errors import ConfigError
from ablate.reports.downstream import find_scored_runs
from ablate.reports.report import assemble
from ablate.sweeps.runs import FRESH
from ablate.verdict.questions import Question, Score

SHARE = {"pre": 20, "post": 22, "mix": 35}
"""Right answers of 40."""


def score(task, right, asked=40):
    """Return answers of which some are right, and lengths that are no whole numbers."""
    values = [{"acc": float(k < right), "share": (k % 7) / 8} for k in range(asked)]
    questions = [Question(f"{task} {k}", value, [-1.5, -2.5]) for k, value in enumerate(values)]
    metrics = {name: sum(value[name] for value in values) / asked for name in values[0]}
    return Score(task, {**metrics, "ppl": float("nan")}, {"acc": 0.05, "share": 0.01}, questions, shots=2, cut=1)


def give_scores(record):
    """Return the record with scores of all runs on fresh seeds."""
    confirmed = {
        arm: [
            replace(run, scores={"piqa": score("piqa", SHARE[arm] + k % 3), "boolq": score("boolq", 20 + k % 2, 30)})
            for k, run in enumerate(runs)
        ]
        for arm, runs in by_arm(record, FRESH).items()
    }
    return put(record, confirmed=confirmed)


@pytest.fixture(scope="module")
def _scored(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "add_scores", give_scores)
        return publish_in(tmp_path_factory.mktemp("scored"))


@pytest.fixture
def scored(_scored, store, tmp_path):
    """The folder of a published sweep with scores."""
    return shutil.copytree(_scored, tmp_path / "scored")


def test_a_sweep_file_is_published_with_the_scores_too(run_sweep, write_sweep, store, tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "add_scores", give_scores)
    run_sweep("searched")
    bundle = publish([str(write_sweep(build_tree("searched")))], tmp_path / "out").bundle
    assert [len(questions) for questions in bundle.questions] == [40, 30]


def test_a_report_of_what_mlflow_does_not_have_does_not_ask_it(monkeypatch):
    _, restored = pass_through_json(give_scores(run_in_memory("searched")))
    monkeypatch.setattr("ablate.reports.downstream.read_scores", lambda title: pytest.fail("asked"))
    report = assemble(restored, Path(), draw=False)
    assert report.downstream.comparisons > 0
    assert not any("are missing" in note for note in report.notes)


def test_an_answer_that_is_no_number_is_none_in_the_bundle_as_in_the_report():
    record = give_scores(run_in_memory("searched"))
    run = record.fresh("mix")[0]
    content = run.scores["piqa"].to_dict()
    content["questions"][3]["values"]["acc"] = math.nan
    scores = {**run.scores, "piqa": Score.from_dict(content)}
    fresh = {**by_arm(record, FRESH), "mix": [replace(run, scores=scores), *record.fresh("mix")[1:]]}
    published, restored = pass_through_json(put(record, confirmed=fresh))
    assert published.verdict == judge(restored)


def test_a_report_of_the_bundle_has_the_scores_of_the_sweep():
    record = give_scores(run_in_memory("searched"))
    published, restored = pass_through_json(record)
    here, there = (assemble(one, Path(), draw=False).to_dict() for one in (record, restored))
    assert {row["metric"] for row in here["downstream"]["rows"]} == {"acc", "share", "ppl"}
    assert json.dumps(there["downstream"]) == json.dumps(here["downstream"])
    assert (there["verdict"], there["arms"]) == (here["verdict"], here["arms"])
    assert published.verdict == judge(restored)
    for arm, runs in find_scored_runs(record).items():
        for seed, scores in runs.items():
            restored_score = find_scored_runs(restored)[arm][seed]["piqa"]
            assert [question.values for question in restored_score.questions] == [
                question.values for question in scores["piqa"].questions
            ]
            assert (restored_score.shots, restored_score.cut) == (2, 1)


def test_the_verdict_of_a_bundle_shares_its_error_with_the_scores():
    plain, _ = pass_through_json(run_in_memory("searched"))
    record = give_scores(run_in_memory("searched"))
    published, _ = pass_through_json(record)
    reported = assemble(record, Path(), draw=False)
    assert published.scored == reported.downstream.comparisons > 0
    families = {arm: compared["family"] for arm, compared in published.verdict.arms.items() if compared["versus"]}
    assert families == {arm: reported.confirmed[arm].family for arm in families}
    assert all(family > plain.verdict.arms[arm]["family"] for arm, family in families.items())


def test_each_list_of_questions_is_kept_once_and_the_page_has_the_table(scored):
    bundle = files.read_bundle(scored)
    assert [len(questions) for questions in bundle.questions] == [40, 30]
    page = (scored / "index.md").read_text()
    assert "## Downstream tasks" in page
    assert "| piqa | 2 | acc | 40 |" in page
    assert (
        '"acc":[1,1' in gzip.decompress((scored / "bundle.json.gz").read_bytes()).decode()
    )  # small: a right answer is 1, not 1.0
    assert verify(scored, runs=1, train=repeat).reproduced
    before = (scored / "bundle.json.gz").read_bytes()
    publish_anew(scored)
    assert (scored / "bundle.json.gz").read_bytes() == before


def test_a_changed_answer_is_found_though_the_digest_was_made_anew(scored):
    def edit(values):
        answers = list_fresh(values, "mix")[0]["scores"]["piqa"]["values"]["acc"]
        answers[:] = [1] * len(answers)

    change(scored, edit, seal=True)
    damage = verify(scored, train=refuse).damage
    assert any("downstream" in text and "is said, and the runs show" in text for text in damage)


def test_scores_that_were_taken_out_are_missed(scored):
    """Without them the verdict would have less to share its error with."""

    def edit(values):
        for run in values["sweeps"][0]["runs"]:
            run.pop("scores", None)
        values["sweeps"][0]["verdict"].pop("downstream")

    change(scored, edit, seal=True)
    assert any("scored: " in text for text in verify(scored, train=refuse).damage)


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda run: run["scores"]["piqa"].update(questions=7), "piqa has the questions 7 of 2 lists"),
        (lambda run: run["scores"]["piqa"]["values"]["acc"].pop(), "piqa has another number of answers than its 40"),
        (lambda run: run.update(surroundings=-1), "a run has the surroundings -1 of 1"),
    ],
)
def test_a_run_that_points_to_nothing_is_refused(scored, edit, told):
    change(scored, lambda values: edit(list_fresh(values, "mix")[0]), seal=True)
    with pytest.raises(ConfigError, match=told):
        verify(scored, train=refuse)
