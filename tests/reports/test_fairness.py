"""Confounds and surroundings: what else the arms and their runs differ in."""

from dataclasses import replace

from run_table import by_arm, put

from ablate.reports import fairness
from ablate.reports.fairness import tabulate_confounds
from ablate.reports.report import assemble
from ablate.reports.terminal import to_text
from ablate.scheduler.storage import read_sweep


def with_facts(record, **facts):
    trials = {
        arm: [replace(t, facts={**facts, **t.facts}) for t in found if t.status == "completed"]
        for arm, found in by_arm(record).items()
    }
    return put(record, trials=trials)


def test_arms_that_differ_in_the_factor_alone_differ_in_nothing_else(made):
    found = fairness.find_confounds(made.record)
    assert (found.factor, found.found) == (["norm"], [])
    assert "The arms differ only in norm.\n" in to_text(made.document)
    assert made.to_dict()["confounds"] == {"factor": ["norm"], "found": [], "problem": ""}


def test_confounds_are_told_with_their_values(spec, writer, tmp_path, without_figures):
    spec["arms"]["post"] = {"norm.kind": "post", "optimizer.weight_decay": 0.3}
    writer({**spec, "confounds": ["optimizer.weight_decay"]}).add("pre", {"optimizer.lr": 1e-3}, 1.9)
    made = assemble(read_sweep("demo"), tmp_path)
    (section,) = tabulate_confounds(made.record)
    rows = {tuple(row) for row in section.table.rows}
    assert ("optimizer.weight_decay", "0.3", "post", "yes") in rows
    assert len(rows) == 2
    assert made.to_dict()["confounds"]["found"][0]["values"]["post"] == "0.3"
    assert made.verdict.endswith("The arms differ in optimizer.weight_decay too, so a difference may be due to that.")


def test_a_sweep_of_one_arm_has_none(writer):
    writer({"name": "one", "search": {"optimizer.lr": [1e-3, 1e-2]}}).add("all", {"optimizer.lr": 1e-3}, 1.9)
    assert fairness.find_confounds(read_sweep("one")) is None


def test_a_missing_plugin_is_told_and_hides_nothing_else(record, tmp_path):
    arms = {**record.spec.all_arms}
    arms["mix"] = arms["mix"].model_copy(update={"settings": {"norm": "of_a_plugin"}})
    away = record.spec.model_copy(update={"arms": arms, "plugins": ("gone.py",)})
    made = assemble(replace(record, spec=away), tmp_path)
    text = to_text(made.document)
    assert "Whether the arms differ only in " in text
    assert "1.735" in text
    assert made.to_dict()["confounds"]["found"] is None
    assert "Whether the arms differ only in " in made.page()


def test_surroundings_that_differ_are_told_by_arm(full):
    (found,) = fairness.find_surroundings(full)
    assert found.key == "ablate.hardware"
    assert found.runs == {"one": {"pre": 13, "post": 13, "mix": 9}, "two": {"mix": 4}}
    assert fairness.find_common_facts(full) == {"version.torch": "2.9"}


def test_a_fact_that_only_some_have_is_a_difference(full):
    trials = [replace(full.search("pre")[0], facts={"ablate.hardware": "one"}), *full.search("pre")[1:]]
    found = fairness.find_surroundings(put(full, trials={**by_arm(full), "pre": trials}))
    assert {s.key: s.runs for s in found}["version.torch"]["not recorded"] == {"pre": 1}


def test_uncommitted_changes_are_told_even_where_all_runs_have_them(record):
    dirty = with_facts(record, **{"ablate.dirty": "true", "ablate.corpus": "0" * 64})
    first, second = fairness.describe_surroundings(dirty)
    assert first.startswith("19 of 19 runs used code with uncommitted changes (pre 8, post 5 and mix 6).")
    assert second.startswith("All 19 runs used the same data, hardware, precision, code and package versions.")


def test_old_records_without_facts_say_nothing(record):
    assert fairness.find_surroundings(record) == []
    assert fairness.find_common_facts(record) == {}
    assert list(fairness.describe_surroundings(record)) == []


def compute(record, **facts):
    """Return the record with these facts of all its runs, whatever they had."""
    return put(
        record,
        trials={arm: [replace(t, facts={**t.facts, **facts}) for t in own] for arm, own in by_arm(record).items()},
    )


def test_sizes_that_were_computed_otherwise_are_told(made):
    usual = {"ablate.hardware": "A", "ablate.precision": "32-true", "ablate.compile": "true"}
    small = compute(made.record, **usual)
    assert not list(fairness.describe_sizes({"s": small, "m": small}))
    large = compute(made.record, **{**usual, "ablate.hardware": "B"})
    (text,) = fairness.describe_sizes({"s": small, "m": small, "l": large})
    assert text.startswith("Between sizes more differs than the size: hardware A (s and m) and B (l). What")


def test_a_size_of_which_nothing_is_recorded_differs_in_nothing_that_is_known(made):
    small = compute(made.record, **{"ablate.hardware": "A"})
    bare = {arm: [replace(t, facts={}) for t in own] for arm, own in by_arm(small).items()}
    assert not list(fairness.describe_sizes({"s": small, "m": small, "l": put(small, trials=bare)}))


def test_an_arm_that_was_computed_otherwise_at_one_size_is_named(made):
    small = compute(made.record, **{"ablate.compile": "true"})
    eager = by_arm(compute(made.record, **{"ablate.compile": "false"}))
    large = put(small, trials={**by_arm(small), "post": eager["post"]})
    (text,) = fairness.describe_sizes({"s": small, "l": large})
    assert "compile true (s and mix, pre of l) and false (post of l). What" in text


def test_uncommitted_code_is_told_by_arm(made):
    dirty = compute(made.record, **{"ablate.dirty": "true"})
    clean = by_arm(compute(made.record, **{"ablate.dirty": "false"}))
    (text,) = fairness.describe_dirty(put(dirty, trials={**by_arm(dirty), "pre": clean["pre"]}))
    assert "used code with uncommitted changes (post " in text
    assert "pre " not in text
    assert not list(fairness.describe_dirty(compute(made.record, **{"ablate.dirty": "false"})))
