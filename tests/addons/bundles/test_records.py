"""What is read from a bundle is the record that was published, and is judged the same."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bundles.conftest import KINDS, run_in_memory
from run_table import by_arm, put

from ablate.addons.bundles.records import Shared, judge, publish_record, restore_record
from ablate.addons.bundles.schema import PublishedSweep
from ablate.reports.report import assemble
from ablate.sweeps.records import list_rows
from ablate.sweeps.runs import FRESH, STAGES


def pass_through_json(record):
    shared = Shared()
    published = publish_record(record, None, shared)
    text = json.dumps(published.model_dump(mode="json"), allow_nan=False)
    return PublishedSweep.model_validate_json(text), restore_record(published, shared)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_of_a_bundle_is_that_of_the_sweep(kind):
    record = run_in_memory(kind)
    published, restored = pass_through_json(record)
    reports = [assemble(one, Path(), draw=False).to_dict() for one in (record, restored)]
    for report in reports:
        report.pop("mlflow")
    assert json.dumps(reports[1]) == json.dumps(reports[0])
    assert published.verdict == judge(restored)
    rows = [[str({**row, "run_id": None}) for row in list_rows(one)] for one in (record, restored)]
    rows[0] = [row.replace("inf", "nan") for row in rows[0]]  # what is not finite is null in JSON
    assert rows[1] == rows[0]


def test_every_run_that_ended_is_published_once():
    for kind in KINDS:
        record = run_in_memory(kind)
        published, _ = pass_through_json(record)
        assert len(published.runs) == len(record.runs), kind
    stages = {run.stage for kind in ("challenged", "extended") for run in run_in_memory(kind).runs}
    assert stages == {*STAGES}


def test_a_run_that_goes_on_is_left_out():
    record = run_in_memory("grid")
    arm = "pre lr=0.001"
    first, *others = record.fresh(arm)
    confirmed = {**by_arm(record, FRESH), arm: [replace(first, status="running", value=None), *others]}
    published, _ = pass_through_json(put(record, confirmed=confirmed))
    assert [run.seed for run in published.runs if run.arm == arm] == [run.seed for run in others]


def test_settings_are_whole_for_the_first_arm_and_what_differs_for_others():
    record = run_in_memory("searched")
    published, _ = pass_through_json(record)
    for arm, one in published.arms.items():
        settled = {path: value for path, value in record.settled(arm).params.items() if path != "seed"}
        flat = record.spec.at(arm, settled).flat()
        flat.pop("seed")
        merged = {**published.settings, **one.settings}
        assert {path: value for path, value in merged.items() if value is not None or path in flat} == flat
    assert "norm.kind" in published.arms["post"].settings
    assert "model.hidden" not in published.arms["post"].settings
