"""A plan on a terminal."""

from __future__ import annotations

from rich.console import Console

from ablate.cli.tables import table
from ablate.config.formatting import count_noun, format_count, format_duration
from ablate.estimate.gpus import GIB, GPU
from ablate.estimate.memory import PARTS, usable
from ablate.estimate.plan import Plan
from ablate.sweeps.gpu_plan import SweepPlan

STRATEGIES = {"one": "one device", "ddp": "ddp", "fsdp": "fsdp"}


def render(found: Plan | SweepPlan, console: Console) -> None:
    """Prints a plan."""
    if isinstance(found, SweepPlan):
        _sweep(found, console)
    else:
        _run(found, console)


def _run(plan: Plan, console: Console) -> None:
    counts, setup, gpu = plan.counts, plan.setup, plan.assumed.gpu
    one = plan.unit[:-1]
    console.print(f"{plan.model}: {counts.total:,} parameters")
    facts = [
        ("embedding", f"{counts.embedding:,}"),
        ("head", f"{counts.head:,}" if counts.head else "tied to the embedding"),
        ("non-embedding", f"{counts.rest:,}"),
        *([("frozen", f"{counts.frozen:,}")] if counts.frozen else []),
        (
            f"FLOPs per {one}",
            f"{format_count(counts.forward_flops)} forward, {format_count(counts.training_flops)} in training",
        ),
        ("run", f"{format_count(plan.items)} {plan.unit} in batches of {setup.batch_size:,}"),
        ("setup", _setup(plan)),
    ]
    for name, text in facts:
        console.print(f"  {name:15} {text}")
    _memory(plan, gpu, console)
    rate = format_count(plan.items_per_second)
    console.print(
        f"\nAt a utilisation of {plan.mfu:.0%} (assumed; --mfu): {rate} {plan.unit} a second, {_days(plan.days)}, "
        f"{_hours(plan.gpu_hours)}."
    )
    for note in plan.notes:
        console.print(note)


def _setup(plan: Plan) -> str:
    setup = plan.setup
    words = [f"{count_noun(setup.devices, 'device')}", setup.precision]
    if setup.devices > 1:
        words.insert(1, setup.strategy)
    words.append(f"{setup.micro_batch} at once, {setup.accumulate} accumulated")
    if setup.checkpointing:
        words.append("activation checkpointing")
    if setup.offload:
        words.append("offloaded")
    return ", ".join(words)


def _memory(plan: Plan, gpu: GPU, console: Console) -> None:
    rows = [[f"  {name}", f"{plan.memory.parts[name] / GIB:.2f}"] for name in PARTS]
    rows += [
        ["  peak", f"{plan.memory.peak / GIB:.2f}"],
        [f"  usable on {gpu.name}", f"{usable(gpu.memory) / GIB:.2f}"],
    ]
    console.print()
    console.print(table(("memory of each device", "GiB"), rows, right=("GiB",)))
    if plan.memory.host:
        console.print(f"and {plan.memory.host / GIB:.2f} GiB of the host's memory for each device")
    if plan.fits:
        console.print("\nIt fits.")
    elif not plan.fitting:
        console.print("\nIt does not fit, and no setting of these devices makes it fit: take more, or larger ones.")
    else:
        console.print("\nIt does not fit. What does:")
        for fitting in plan.fitting:
            cost = "" if fitting.slower == 1 else f", {fitting.slower:.2f} times the FLOPs"
            console.print(f"  {' '.join(fitting.words)}  ({fitting.memory.peak / GIB:.2f} GiB{cost})")


def _sweep(found: SweepPlan, console: Console) -> None:
    gpu, unit = found.arms[0].plan.assumed.gpu, found.arms[0].plan.unit
    rows = []
    for cost in found.arms:
        plan = cost.plan
        trials = "as the budget lasts" if cost.trials is None else str(cost.trials)
        fits = "yes" if plan.fits else f"with {' '.join(plan.fitting[0].words)}" if plan.fitting else "no"
        rows.append(
            [cost.arm, format_count(plan.counts.total), f"{trials} + {cost.seeds}", format_count(cost.items),
             f"{plan.memory.peak / GIB:.2f}", fits, f"{cost.gpu_hours:,.2f}"]
        )  # fmt: skip
    header = ("arm", "parameters", "trials + seeds", unit, "GiB", f"fits {gpu.name}", "GPU-hours")
    console.print(f"sweep {found.name}")
    console.print(table(header, rows, right=("parameters", unit, "GiB", "GPU-hours")))
    first = found.arms[0].plan
    console.print(
        f"\nAll arms, at most: {format_count(found.items)} {unit}, {_hours(found.gpu_hours)} at a utilisation of "
        f"{first.mfu:.0%} (assumed; --mfu); validation is not counted."
    )
    for note in dict.fromkeys(note for cost in found.arms for note in cost.plan.notes):
        console.print(note)


def _days(days: float) -> str:
    return f"{days:,.1f} days" if days >= 2 else format_duration(days * 86400)


def _hours(hours: float) -> str:
    return f"{hours:,.0f} GPU-hours" if hours >= 10 else f"{hours:.2f} GPU-hours"
