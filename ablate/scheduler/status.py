"""The status of sweeps: trials by status, the best so far, and the size of their checkpoints."""

from __future__ import annotations

import contextlib
from typing import Any

from ablate import tracking
from ablate.config.errors import StoreError
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.comparison import compare_record, compare_record_effects, plan_record
from ablate.sweeps.records import format_title
from ablate.sweeps.runs import SEARCH, SELECTION
from ablate.sweeps.verdict_summary import summarise_verdict, tell_verdict
from ablate.training.runs import measure_checkpoint
from ablate.verdict.effect_statements import name_effect
from ablate.verdict.failures import count_failures


def read_statuses(title: str | None = None, storage: str | None = None) -> list[dict[str, Any]]:
    """Return one row per arm of the sweep `title`, or of every sweep's latest generation. Raises SweepError for an
    unknown one."""
    url = storage_url(storage)
    titles = [title] if title else [format_title(n, g[-1]) for n, g in list_sweeps(url).items()]
    rows = []
    for name in titles:
        sweep = read_sweep(name, url)
        wanted, compared = plan_record(sweep).seeds, compare_record(sweep)
        verdict, effects = summarise_verdict(sweep), compare_record_effects(sweep)
        deleted = sweep.describe_deleted()
        with contextlib.suppress(StoreError):  # the state is that of the studies, whether or not MLflow can be read
            deleted = "\n".join(filter(None, [deleted, *tracking.list_deleted(sweep.title, sweep.list_run_ids())]))
        for arm in sweep.arms:
            best, runs = sweep.best(arm), sweep.runs.select(arm)
            selected = runs.select(stage=SELECTION).finished
            failures = count_failures(sweep.fresh(arm).outcomes().values())
            rows.append(
                {
                    "verdict": verdict,
                    "arm_verdict": tell_verdict(sweep, arm, compared) if arm in compared else None,
                    "sweep": sweep.title,
                    "arm": arm,
                    "at_grid": sweep.spec.at_grid,
                    "deleted": deleted,
                    "effects": {name: name_effect(effect) for name, effect in effects.items()},
                    "target": sweep.target(arm),
                    **sweep.search(arm).count_statuses(),
                    "selected": selected,
                    "selection_target": selected if arm in sweep.chosen else sweep.spec.count_selection_runs(arm),
                    "confirmed": sweep.fresh(arm).finished,
                    "confirmed_failed": failures.failed if failures else 0,
                    "confirm_target": wanted.get(arm, sweep.spec.confirm.first_seeds),
                    "metric": sweep.spec.objective.metric,
                    "best": best.value if best else None,
                    "params": best.params if best else {},
                    "checkpoint_bytes": sum(map(measure_checkpoint, {run.run_id for run in runs if run.run_id})),
                    "failures": [
                        f"{f'#{run.number}' if run.stage == SEARCH else f'seed {run.seed}'}: {run.reason}"
                        for run in runs.select(status="failed")
                    ],
                }
            )
    return rows
