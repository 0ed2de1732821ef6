"""A bundle that is whole and true is verified, and one that is neither is found out."""

import gzip
import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from bundles.conftest import read_json, write_json
from optuna.storages import InMemoryStorage
from run_table import by_arm
from scaling.test_sizes import FILE
from scheduler.small import run_here, spec_tree

from ablate.addons.bundles import files
from ablate.addons.bundles import verify as verifying
from ablate.addons.bundles.claims import list_other_kinds
from ablate.addons.bundles.publish import publish
from ablate.addons.bundles.records import judge
from ablate.addons.bundles.reruns import Rerun, Trained, list_reruns, shuffle_reruns
from ablate.addons.bundles.verify import bound_distance, compare_rerun, verify
from ablate.config.errors import ConfigError, DataError
from ablate.sweeps.runs import FRESH
from ablate.sweeps.spec.files import load_sweeps
from ablate.sweeps.spec.sweep import Sweep
from benchmarks.simulation.sweeps import simulate


def repeat(rerun):
    """What a run comes to that comes out as published."""
    run = rerun.run
    return Trained(run.status, run.value, dict(run.curve), dict(run.metrics), dict(run.facts))


def refuse(rerun):
    raise AssertionError("nothing of a damaged bundle is trained")


def list_fresh(values, arm):
    """The runs of an arm of a bundle on fresh seeds."""
    return [run for run in values["sweeps"][0]["runs"] if (run["arm"], run.get("stage")) == (arm, FRESH)]


def change(bundle, edit, seal=False):
    values = read_json(bundle)
    edit(values)
    write_json(bundle, values, seal)


def test_a_true_bundle_is_reproduced_in_all_its_cells(bundle):
    verification = verify(bundle, runs=None, train=repeat)
    assert verification.reproduced
    assert {rerun.word for rerun in verification.runs} == {"bit for bit"}
    assert len(verification.runs) == verification.of > 20
    assert "bit for bit" in json.dumps(verification.to_dict())


def test_cells_are_drawn_from_fresh_seeds_and_only_as_many_as_asked_for(bundle):
    labels = [verify(bundle, runs=2, train=repeat).runs for _ in range(12)]
    assert {len(reruns) for reruns in labels} == {2}
    assert all(f"({FRESH})" in rerun.label for reruns in labels for rerun in reruns)
    assert len({rerun.label for reruns in labels for rerun in reruns}) > 4
    unchecked = verify(bundle, runs=0, train=refuse)
    assert unchecked.holds
    assert unchecked.reproduced is None


def test_a_run_is_named(bundle):
    (rerun,) = verify(bundle, runs=1, only=["mix", "seed 3", f"({FRESH})"], train=repeat).runs
    assert " mix" in rerun.label
    assert f"seed 3 ({FRESH})" in rerun.label
    with pytest.raises(DataError, match=r"No run of searched is called maximal\. One of its runs is 'searched: "):
        verify(bundle, only=["maximal"], train=repeat)


def test_a_cheap_run_is_drawn_from_all_that_are_as_cheap(bundle):
    """All runs of the bundle take the same."""
    reruns = read_reruns(bundle)
    drawn = {rerun.label for _ in range(30) for rerun in shuffle_reruns(reruns, 1, cheapest=True)}
    assert drawn == {rerun.label for rerun in reruns}


def set_value(values):
    run = list_fresh(values, "pre")[0]
    run["value"] = run["metrics"]["val/loss"] = run["value"] - 0.4


def set_difference(values):
    values["sweeps"][0]["verdict"]["arms"]["mix"]["versus"]["difference"]["mean"] -= 0.1


def set_end(values):
    list_fresh(values, "pre")[0]["value"] -= 1e-6


def drop_run(values):
    values["sweeps"][0]["runs"].remove(list_fresh(values, "post")[-1])


@pytest.mark.parametrize("seal", [False, True])
@pytest.mark.parametrize("edit", [set_value, set_difference, set_end, drop_run])
def test_a_changed_value_is_found_even_where_the_digest_was_made_anew(bundle, edit, seal):
    change(bundle, edit, seal)
    verification = verify(bundle, runs=1, train=refuse)
    assert verification.damage
    assert not verification.reproduced


def test_all_runs_are_judged_by_though_one_of_them_cannot_be_trained(bundle, monkeypatch):
    """All of Post-LN, which was better, come out half a nat higher."""
    left_out = next(rerun.label for rerun in read_reruns(bundle) if rerun.run.stage == "search")
    monkeypatch.setattr(verifying, "find_obstacle", lambda rerun: "not here" if rerun.label == left_out else "")

    def worsen(rerun):
        trained = repeat(rerun)
        return replace(trained, value=trained.value + 0.5) if rerun.arm == "post" and trained.value else trained

    verification = verify(bundle, runs=None, train=worsen)
    assert verification.left_out == [f"{left_out}: not here"]
    assert len(verification.runs) == verification.of - 1
    assert any("post" in text for text in verification.changed)


def test_files_that_were_not_published_are_found(bundle):
    (bundle / ".hidden").write_text("")
    assert verify(bundle, runs=0).damage == []
    (bundle / "notes.md").write_text("Better than all others.")
    (bundle / "plugins").mkdir()
    (bundle / "plugins" / "more.py").write_text("")
    assert verify(bundle, runs=0).damage == [
        "notes.md: the file was not published with it",
        "plugins/more.py: the file was not published with it",
    ]


@pytest.mark.parametrize("name", ["sweep.yaml", "verdict.png", "index.md"])
def test_a_changed_or_missing_file_is_found(bundle, name):
    content = (bundle / name).read_bytes()
    (bundle / name).write_bytes(content + b"\n")
    assert verify(bundle, runs=1, train=refuse).damage == [f"{name}: the file was changed"]
    (bundle / name).unlink()
    assert verify(bundle, runs=1, train=refuse).damage == [f"{name}: the file is missing"]


def test_a_forgery_that_holds_together_is_found_by_training(bundle):
    """Whoever writes other values and judges them anew deceives all but a training."""
    truth = {rerun.label: repeat(rerun) for rerun in read_reruns(bundle)}
    change(bundle, set_value)
    published = files.read_bundle(bundle)
    (record,) = files.restore_records(published, bundle).values()
    change(bundle, lambda v: v["sweeps"][0].update(verdict=judge(record).model_dump(mode="json")), seal=True)
    verification = verify(bundle, runs=None, train=lambda rerun: truth[rerun.label])
    assert not verification.damage
    assert not verification.reproduced
    (wrong,) = [rerun for rerun in verification.runs if not rerun.reproduced]
    assert wrong.word == "not reproduced"
    assert "pre" in wrong.label


def read_reruns(folder):
    published = files.read_bundle(folder)
    return list_reruns(files.restore_records(published, folder).values())


def move(rerun, value=None, **facts):
    """What a run comes to on other hardware."""
    trained = repeat(rerun)
    value = trained.value if value is None else value
    return replace(trained, value=value, facts={"ablate.hardware": "another", **facts})


def with_value(rerun, value):
    """The rerun with another published value, in its record too."""
    run, runs = replace(rerun.run, value=value), rerun.record.runs
    rows = runs.replace(run if other is rerun.run else other for other in runs)
    return Rerun(replace(rerun.record, runs=rows), run)


def test_elsewhere_a_value_may_lie_as_far_away_as_another_seed(bundle):
    rerun = next(rerun for rerun in read_reruns(bundle) if rerun.arm == "pre" and rerun.run.stage == FRESH)
    values = [peer.value for peer in rerun.peers]
    assert len(values) == 3
    limit = 4.302653 * np.std(values, ddof=1) * math.sqrt(2)  # Student's t with two degrees of freedom, 97.5 %
    for distance, word in ((0.98, "within the seeds"), (1.02, "not reproduced"), (-1.02, "not reproduced")):
        checked = compare_rerun(rerun, move(rerun, float(rerun.run.value + distance * limit)), 1)
        assert checked.word == word, checked
        assert checked.differs == {"ablate.hardware": ("not known", "another")}
    here = replace(repeat(rerun), value=rerun.run.value + 1e-7)
    assert compare_rerun(rerun, here, 1).word == "not reproduced"
    assert compare_rerun(rerun, move(rerun), 1).word == "bit for bit"


def test_a_forged_value_is_found_elsewhere_too_though_what_came_out_lies_among_the_other_seeds(bundle):
    reruns = [rerun for rerun in read_reruns(bundle) if rerun.arm == "pre" and rerun.run.stage == FRESH]
    rerun, true = reruns[0], reruns[0].run.value
    forged = with_value(rerun, true - 0.4)
    assert compare_rerun(forged, move(rerun, true + 1e-6), 1).word == "not reproduced"


def test_a_value_that_lies_apart_from_the_other_seeds_comes_out_to_rounding(bundle):
    rerun = next(rerun for rerun in read_reruns(bundle) if rerun.arm == "pre" and rerun.run.stage == FRESH)
    far = with_value(rerun, rerun.run.value + 0.5)
    assert compare_rerun(far, move(rerun, far.run.value * (1 + 0.9e-4)), 1).word == "to rounding"
    alone = replace(far, record=replace(far.record, runs=far.record.runs.replace([far.run])))
    assert compare_rerun(alone, move(rerun, far.run.value * (1 + 0.9e-4)), 1).word == "to rounding"
    assert compare_rerun(alone, move(rerun, far.run.value * (1 + 1.1e-4)), 1).word == "cannot be compared"


def test_on_another_corpus_nothing_is_said(bundle):
    rerun = read_reruns(bundle)[0]
    rerun = replace(rerun, run=replace(rerun.run, facts={"ablate.corpus": "a" * 64}))
    checked = compare_rerun(rerun, move(rerun, rerun.run.value + 0.001, **{"ablate.corpus": "b" * 64}), 1)
    assert checked.word == "cannot be compared"
    assert "on another corpus (bbbbbbbbbbbb..., not aaaaaaaaaaaa...)" in checked.why
    assert not checked.reproduced


def test_an_ending_that_no_other_seed_had_is_not_reproduced(bundle):
    pre, post = (
        next(c for c in read_reruns(bundle) if c.arm == arm and c.run.stage == FRESH and c.run.status == "completed")
        for arm in ("pre", "post")
    )
    assert {outcome.ending for outcome in post.peers.outcomes().values()} >= {"stuck"}
    for rerun, word in ((pre, "not reproduced"), (post, "within the seeds")):
        there = replace(move(rerun, 3.29), metrics={"val/loss": 3.29})
        assert compare_rerun(rerun, there, 1).word == word


def test_two_seeds_lie_farther_apart_as_often_as_said():
    drawn = np.random.default_rng(0).normal(size=(4000, 6))
    missed = sum(abs(one - other) > bound_distance(peers, 0.1) for one, other, *peers in drawn.tolist())
    assert abs(missed / 4000 - 0.1) < 3 * math.sqrt(0.1 * 0.9 / 4000)


def test_a_run_is_trained_again_bit_for_bit_and_a_false_setting_is_found(store, tiny_settings, tmp_path):
    tree = spec_tree(tiny_settings, sampler="random", confirm={"seeds": 3, "candidates": 1})
    run_here(Sweep.from_tree(tree))
    folder = tmp_path / "bundle"
    published = publish(["small"], folder)
    assert published.bundle.corpora[0].settings["kind"] == "topics"
    assert "help topics" in published.bundle.corpora[0].source
    told = []
    verification = verify(folder, runs=2, show=told.append)
    assert [rerun.word for rerun in verification.runs] == ["bit for bit"] * 2, told
    assert len(verification.runs[0].differs) == 0
    change(folder, lambda values: values["sweeps"][0]["spec"]["experiment"]["data"].update(seq_len=31), seal=True)
    assert [rerun.word for rerun in verify(folder, runs=1).runs] == ["not reproduced"]


def test_a_corpus_that_is_not_here_is_told(bundle):
    def miss(rerun):
        raise DataError("There is no file books.txt.")

    with pytest.raises(DataError, match=r"cannot be trained here: There is no file books.txt. No corpus is part of a"):
        verify(bundle, train=miss)


def test_what_is_no_bundle_is_told(bundle, tmp_path):
    with pytest.raises(DataError, match="There is no bundle in"):
        verify(tmp_path / "nowhere")
    with pytest.raises(DataError, match=rf"bundle.json.gz is a file. Give the folder that it is in: {bundle}"):
        verify(bundle / "bundle.json.gz")
    for content, told in (
        (b'{"format": "ablate bundle", "version": 99}', "has version 99 of the format"),
        (b"{", "cannot be read as JSON in gzip"),
        (b"[]", "is not a bundle"),
    ):
        (tmp_path / "bundle.json.gz").write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=told):
            verify(tmp_path)
    change(bundle, lambda values: values.pop("sweeps"))
    with pytest.raises(ConfigError, match="sweeps: is required"):
        verify(bundle)


def test_files_outside_of_the_bundle_are_not_looked_at(bundle):
    change(bundle, lambda values: values["files"].update({"../secret": "0"}), seal=True)
    with pytest.raises(DataError, match="outside of its folder"):
        verify(bundle)


def test_with_all_cells_what_the_sizes_show_together_is_judged_anew(write_sweep):
    """The best rate of Post-LN halves from one size to the other as published, and stays as trained again."""
    rates = [2.0**k / 1000 for k in range(-2, 5)]
    parts = {"search": {"optimizer.lr": rates}, "confirm": {"at": "grid", "seeds": 4, "effect": 0.05}}
    specs = {spec.name.rpartition("-")[2]: spec for spec in load_sweeps(write_sweep({**FILE, **parts}))}

    def lose(arm, params, seed, moves):
        best = 1.0 if arm == "pre" else 2.0 - moves * (1 + 0.02 * seed)
        return 2 + 0.05 * (math.log2(params["optimizer.lr"] / 1e-3) - best) ** 2 + 0.01 * math.sin(seed)

    records = {
        size: simulate(spec, partial(lose, moves=k), InMemoryStorage()) for k, (size, spec) in enumerate(specs.items())
    }
    large = records[max(records, key=lambda size: [*specs].index(size))]
    trained = []
    for name, runs in by_arm(large, FRESH).items():
        for run in runs:
            params = {**large.spec.cells[name].point}
            value = lose(large.spec.cells[name].arm, params, run.seed, moves=0)
            ended = Trained("completed", value, {run.step: value}, {"val/loss": value}, {})
            trained.append((Rerun(large, run), ended))
    changed = list_other_kinds("toy", records, trained)
    assert "over the sizes, arms.post: costs was published, and here it is holds" in changed
    assert not [text for text in changed if "arms.pre:" in text and text.startswith("over")]
    assert list_other_kinds("toy", records, []) == []
