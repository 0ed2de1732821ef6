"""The plans of the sweeps of a file, for --dry-run of every verb that runs sweeps."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ablate.cli.output import print_json
from ablate.config.lazy import LazyModule

if TYPE_CHECKING:
    from ablate.sweeps import transfer_plan
    from ablate.sweeps.spec.sweep import Sweep
else:
    transfer_plan = LazyModule("ablate.sweeps.transfer_plan")


def print_plans(
    specs: Sequence[Sweep],
    plan: Callable[[Sweep], tuple[str, str]],
    options: argparse.Namespace,
    notes: Sequence[str] = (),
) -> int:
    """Print the plan of each sweep, what a transfer between them saves, and the `notes`; return 2 where data is missing
    without which a sweep cannot start.

    Args:
        specs: the sweeps, in the order in which they run.
        plan: returns the plan of one of them, and the data that is missing ('' for none).
        options: of the verb.
        notes: sentences on all sweeps together.
    """
    missing: dict[str, None] = {}
    plans = []
    for spec in specs:
        text, lacking = plan(spec)
        missing |= {lacking: None} if lacking else {}
        plans.append({"sweep": spec.name, "plan": text})
        if not options.json:
            print(f"{text}\n" if spec is not specs[-1] else text, flush=True)
    saving = list(transfer_plan.describe_saving(specs))
    if options.json:
        together = {"saving": saving[0]} if saving else {}
        print_json({"sweeps": plans, **together, **({"notes": list(notes)} if notes else {})})
    else:
        for text in (*saving, *(f"Note: {note}" for note in notes)):
            print(f"\n{text}")
    for message in missing:
        print(f"ablate {options.verb}: this sweep cannot start here. {message}", file=sys.stderr)
    return 2 if missing else 0
