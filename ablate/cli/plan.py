"""`ablate plan`: the GPU memory, FLOPs and time that an experiment or a sweep needs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_verb, parse_above_zero, parse_positive, parse_share
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.formatting import count_noun, format_count, format_duration, format_range
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import parse_overrides
from ablate.estimate.gpus import GIB, GPU, find_gpu

if TYPE_CHECKING:
    from rich.console import Console

with postpone_imports():
    from ablate.estimate import memory
    from ablate.estimate import plan as plans
    from ablate.sweeps import plans as sweep_plans
    from ablate.sweeps.spec import library

_EXAMPLE = """\
ablate plan model=llama-1b model.vocab_size=32000 trainer.batch_size=512
  ablate plan model=llama-7b model.vocab_size=32000 trainer.strategy=fsdp --gpu h100-80gb --devices 8
  ablate plan demo --gpu rtx-4090"""

_WORDS = f"the file of an experiment or a sweep, or the name of a sweep that comes with Ablate; {OVERRIDES}"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "print the GPU memory, FLOPs and time that an experiment or a sweep needs"
    parser = add_verb(verbs, "plan", text, _EXAMPLE, run)
    parser.add_argument("words", nargs="*", default=[], metavar="[FILE.yaml] key=value", help=_WORDS)
    parser.add_argument("--size", metavar="NAME", help="plan only this size or stage of a sweep file")
    parser.add_argument("--gpu", default="h100-80gb", metavar="NAME", help="kind of GPU (default: h100-80gb)")
    parser.add_argument(
        "--devices", type=parse_positive, metavar="N", help="GPUs per machine (default: trainer.devices, 1)"
    )
    parser.add_argument("--nodes", type=parse_positive, metavar="N", help="machines (default: trainer.nodes, 1)")
    parser.add_argument("--mfu", type=parse_share, metavar="SHARE", help="model FLOPs utilisation (default: by size)")
    parser.add_argument(
        "--gpu-memory", type=parse_above_zero, metavar="GIB", help=("memory of a GPU that is not in the list")
    )
    parser.add_argument(
        "--gpu-flops", type=parse_above_zero, metavar="TFLOPS", help="its peak throughput at the precision of the run"
    )
    add_json(parser, "print as JSON, memory in bytes")


def run(options: argparse.Namespace) -> int:
    """Print the plan of an experiment, or of every arm of a sweep."""
    gpu = find_gpu(options.gpu, options.gpu_memory, options.gpu_flops)
    file, overrides, part = _find_file(options.words)
    assumed = plans.Assumed(gpu, options.devices, options.nodes, options.mfu)
    plan = sweep_plans.plan_file(file, overrides, assumed, options.size or part)
    if options.json:
        print_json(plan.to_dict())
    else:
        render(plan, build_console())
    return 0


def _find_file(words: Sequence[str]) -> tuple[Path | None, dict[str, Any], str | None]:
    """Return the file that the first word is or names, the settings, and the size or stage that the name ends in."""
    if not words or "=" in words[0]:
        return None, parse_overrides(words), None
    file, part = library.find_sweep_file(words[0])
    return file, parse_overrides(words[1:]), part


def render(plan: plans.Plan | sweep_plans.SweepPlan, console: Console) -> None:
    """Print a plan."""
    if isinstance(plan, sweep_plans.SweepPlan):
        _print_sweep(plan, console)
    else:
        _print_run(plan, console)


def _print_run(plan: plans.Plan, console: Console) -> None:
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
        ("run", f"{format_count(plan.work.items)} {plan.unit} in batches of {setup.batch_size:,}"),
        ("validation", plan.validation),
        ("setup", _describe_setup(plan)),
    ]
    for name, text in facts:
        console.print(f"  {name:15} {text}")
    _print_memory(plan, gpu, console)
    rate = format_count(plan.items_per_second)
    duration = f"{plan.days:,.1f} days" if plan.days >= 2 else format_duration(plan.days * 86400)
    hours = plan.validated_gpu_hours
    validated = "" if hours is None else f"; with validation at most {_format_hours(hours)}"
    console.print(
        f"\nAt a utilisation of {plan.work.utilisation:.0%} (assumed; --mfu): {rate} {plan.unit} a second, "
        f"{duration}, {_format_hours(plan.work.gpu_hours)}{validated}."
    )
    for note in plan.notes:
        console.print(note)


def _describe_setup(plan: plans.Plan) -> str:
    setup = plan.setup
    words = [f"{count_noun(setup.devices, 'device')}", setup.precision]
    if setup.devices > 1:
        words.insert(1, setup.strategy)
    words.append(f"{setup.micro_batch} at once, {setup.accumulate} accumulated")
    if setup.checkpointing:
        words.append("activation checkpointing")
    if setup.once and setup.accumulate > 1:
        words.append("gradients summed once per update")
    if setup.offload:
        words.append("offloaded")
    return ", ".join(words)


def _print_memory(plan: plans.Plan, gpu: GPU, console: Console) -> None:
    rows = [[f"  {name}", f"{plan.memory.parts[name] / GIB:.2f}"] for name in memory.PARTS]
    rows += [
        ["  peak", f"{plan.memory.peak / GIB:.2f}"],
        [f"  usable on {gpu.name}", f"{memory.subtract_reserve(gpu.memory) / GIB:.2f}"],
    ]
    console.print()
    console.print(build_table(("memory of each device", "GiB"), rows, right=("GiB",)))
    if plan.memory.host:
        console.print(f"and {plan.memory.host / GIB:.2f} GiB of the host's memory for each device")
    if plan.fits:
        console.print("\nIt fits.")
    elif not plan.fitting:
        console.print(
            "\nIt does not fit, and no setting makes it fit on these devices: use more devices, or larger ones."
        )
    else:
        console.print("\nIt does not fit. These settings fit:")
        for fitting in plan.fitting:
            cost = "" if fitting.slower == 1 else f", {fitting.slower:.2f} times the FLOPs"
            console.print(f"  {' '.join(fitting.words)}  ({fitting.memory.peak / GIB:.2f} GiB{cost})")


def _print_sweep(sweep: sweep_plans.SweepPlan, console: Console) -> None:
    gpu, unit = sweep.arms[0].plan.assumed.gpu, sweep.arms[0].plan.unit
    rows = []
    for cost in sweep.arms:
        plan = cost.plan
        left = cost.left
        stages = ("search", "selection", "confirmation")
        runs = " + ".join(format_range(left.runs[stage], left.runs[stage] + left.more[stage]) for stage in stages)
        fits = "yes" if plan.fits else f"with {' '.join(plan.fitting[0].words)}" if plan.fitting else "no"
        rows.append(
            [cost.arm, format_count(plan.counts.total), runs, format_count(cost.items),
             f"{plan.memory.peak / GIB:.2f}", fits, format_range(*(f"{hours:,.2f}" for hours in cost.gpu_hours))]
        )  # fmt: skip
    header = ("arm", "parameters", "trials + selection + seeds", unit, "GiB", f"fits {gpu.name}", "GPU-hours")
    console.print(f"sweep {sweep.name}")
    console.print(build_table(header, rows, right=("parameters", unit, "GiB", "GPU-hours")))
    first, hours = sweep.arms[0].plan, (_format_hours(end).removesuffix(" GPU-hours") for end in sweep.gpu_hours)
    console.print(
        f"\nAll arms: at most {format_count(sweep.items)} {unit}, {format_range(*hours)} GPU-hours at a utilisation of "
        f"{first.work.utilisation:.0%} (assumed; --mfu); extensions, challenges and validation are not counted."
    )
    for line in sweep.power:
        console.print(line, markup=False)
    for note in dict.fromkeys(note for cost in sweep.arms for note in cost.plan.notes):
        console.print(note)


def _format_hours(hours: float) -> str:
    return f"{hours:,.0f} GPU-hours" if hours >= 10 else f"{hours:.2f} GPU-hours"
