"""`ablate plan`: what an experiment or a sweep needs of GPUs, disks and hours, and the commands that start it."""

from __future__ import annotations

import argparse
import math
import shlex
from collections.abc import Iterator, Sequence
from textwrap import indent
from typing import TYPE_CHECKING

from ablate.cli.arguments import OVERRIDES, Verbs, add_json, add_verb, parse_above_zero, parse_positive, parse_share
from ablate.cli.output import build_console, build_table, print_json
from ablate.config.formatting import count_noun, format_bytes, format_count, format_duration, format_range
from ablate.config.lazy import postpone_imports
from ablate.config.yaml import parse_overrides, read_yaml
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
  ablate plan llama-7b --devices 8 --nodes 8 --network 800
  ablate plan demo --gpu rtx-4090"""

_WORDS = f"the file of an experiment or a sweep, or the name of a sweep that comes with Ablate; {OVERRIDES}"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "print the GPU memory, time and disk that an experiment or a sweep needs, and the commands that start it"
    parser = add_verb(verbs, "plan", text, _EXAMPLE, run)
    parser.add_argument("words", nargs="*", default=[], metavar="[FILE.yaml] key=value", help=_WORDS)
    parser.add_argument("--size", metavar="NAME", help="plan only this size or stage of a sweep file")
    parser.add_argument("--gpu", default="h100-80gb", metavar="NAME", help="kind of GPU (default: h100-80gb)")
    parser.add_argument(
        "--devices", type=parse_positive, metavar="N", help="GPUs per machine (default: trainer.devices, 1)"
    )
    parser.add_argument("--nodes", type=parse_positive, metavar="N", help="machines (default: trainer.nodes, 1)")
    parser.add_argument(
        "--mfu", type=parse_share, metavar="SHARE", help="model FLOPs utilisation of computation (default: by size)"
    )
    parser.add_argument(
        "--gpu-memory", type=parse_above_zero, metavar="GIB", help=("memory of a GPU that is not in the list")
    )
    parser.add_argument(
        "--gpu-flops", type=parse_above_zero, metavar="TFLOPS", help="its peak throughput at the precision of the run"
    )
    parser.add_argument(
        "--gpu-link", type=parse_above_zero, metavar="GBYTES", help="GB/s and direction to the GPUs of its machine"
    )
    parser.add_argument(
        "--network", type=parse_above_zero, metavar="GBITS", help="Gbit/s and direction of a machine (default: by GPU)"
    )
    add_json(parser, "print as JSON, memory in bytes")


def run(options: argparse.Namespace) -> int:
    """Print the plan of an experiment, or of every arm of a sweep."""
    gpu = find_gpu(options.gpu, options.gpu_memory, options.gpu_flops, options.gpu_link)
    words, part, file = list(options.words), None, None
    if words and "=" not in words[0]:
        file, part = library.find_sweep_file(words[0])
        read_yaml(file)  # a file that is missing or no YAML is reported before torch is imported, which takes seconds
    assumed = plans.Assumed(gpu, options.devices, options.nodes, options.mfu, options.network)
    plan = sweep_plans.plan_file(file, parse_overrides(words[file is not None :]), assumed, options.size or part)
    commands = list_commands(plan, words, options.size)
    if options.json:
        print_json({**plan.to_dict(), "commands": commands})
        return 0
    console = build_console()
    if isinstance(plan, sweep_plans.SweepPlan):
        _print_sweep(plan, console)
    else:
        _print_run(plan, console)
    for name, command in commands.items():
        console.print(f"\n{name}\n{indent(command, '  ')}", markup=False, soft_wrap=True)
    return 0


_GROUP = "--nnodes {nodes} --nproc-per-node {each} --rdzv-id {id} --rdzv-backend c10d --rdzv-endpoint {host}:29500"
_JOB = """\
sbatch <<'JOB'
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --gpus-per-node={each} --cpus-per-task={cores} --mem=0
#SBATCH --partition=PARTITION --time=24:00:00
#SBATCH --requeue --open-mode=append --signal=USR1@300
{run}
JOB"""
_RUN_GROUP = """\
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun bash -c "trap '' USR1; exec {group}"\
"""
MOST_JOBS, CORES = 32, 8  # CPU cores of a GPU


def list_commands(plan: plans.Plan | sweep_plans.SweepPlan, words: Sequence[str], size: str | None) -> dict[str, str]:
    """Return what starts the file and the settings `words` that were planned -> the command, or why there is none."""
    if not (plan.fits or plan.more):
        return {"none": "it does not fit these devices"}
    sweep, run = (plan, plan.arms[0].plan) if isinstance(plan, sweep_plans.SweepPlan) else (None, plan)
    more, setup, gpus = [*plan.more], run.setup, run.setup.devices // run.setup.nodes
    where = {"nodes": setup.nodes, "each": gpus, "cores": CORES * gpus}
    if setup.devices > 1:
        more += [f"trainer.devices={gpus}", *([f"trainer.nodes={setup.nodes}"] if setup.nodes > 1 else [])]
    sized = ["--size", size] if size else []
    start = f"ablate {'sweep' if sweep else 'train'} {shlex.join([*words, *more, *sized])}"
    commands = {}
    if sweep and run.data != 0:
        alone = ["trainer.devices=auto", "trainer.nodes=null"] if setup.devices > 1 else []
        alone += ["trainer.cpu_offload=false"] if setup.offload else []  # which one process refuses
        first = shlex.join(["ablate", "sweep", *words, *alone, *sized, "--dry-run"])
        commands["first, on a machine without GPUs, which prepares the data"] = first
    if setup.devices == 1 and sweep:
        workers = max(1, min(MOST_JOBS, round(sum(arm.runs[1] for arm in sweep.arms))))
        minutes = min(1440, max(30, math.ceil(90 * sweep.gpu_hours[1] / workers)))  # half as much again
        job = f"slurm.partition=PARTITION timeout_min={minutes} gpus_per_node=1 cpus_per_task={CORES}"
        return {
            **commands,
            "one machine": f"{start} --workers-per-gpu auto",
            "Slurm": f"{start} --submit {job} --workers {workers}",
            "Ray": f"{start} --executor ray --address auto --workers {workers} --gpus-per-worker 1",
            "torchrun": "not needed: a run has one GPU (--devices plans more)",
        }
    group = f"torchrun {_GROUP} -m {start}"
    job = f"srun {start}"
    if setup.devices > 1:
        job = _RUN_GROUP.format(group=group.format(**where, id="$SLURM_JOB_ID", host="$host"))
    if setup.nodes == 1:
        if not sweep:
            commands["one machine"] = start
        group = f"torchrun --standalone --nproc-per-node {gpus} -m {start}"
    commands["Slurm"] = _JOB.format(**where, run=job)
    if setup.devices > 1:
        several = ", on each of the machines, of which one is HOST1" if setup.nodes > 1 else ""
        commands[f"torchrun{several}"] = group.format(**where, id="NAME", host="HOST1")
    return {**commands, "Ray": f"no command: {'its workers have one GPU each' if sweep else 'it runs sweeps'}"}


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
        *_describe_launch(plan),
    ]
    for name, text in facts:
        console.print(f"  {name:15} {text}")
    _print_memory(plan, gpu, console)
    _print_ways(plan, console)
    rate = format_count(plan.items_per_second)
    duration = f"{plan.days:,.1f} days" if plan.days >= 2 else format_duration(plan.days * 86400)
    hours = plan.validated_gpu_hours
    validated = "" if hours is None or hours < 0.01 else f"; with validation about {_format_hours(hours)} at most"
    started = f", with {' '.join(plan.more)}" if plan.more else ""
    console.print(
        f"\nAt a utilisation of {plan.work.utilisation:.0%} (assumed; --mfu){started}: {rate} {plan.unit} a second, "
        f"{duration}, {_format_hours(plan.gpu_hours)} GPU-hours{_describe_waiting(plan)}{validated}."
    )
    for note in plan.notes:
        console.print(note)


def _describe_launch(plan: plans.Plan, kept: str = "1 after it") -> Iterator[tuple[str, str]]:
    """Yield (name, text) of what a launch needs on disks and before the first update."""
    yield from plans.describe_disk(plan.checkpoint, plan.data, kept).items()
    drawing, host = format_duration(plan.drawing), format_bytes(round(plan.host))
    yield "each machine", f"draws the initial weights: {drawing} (rate measured on a CPU), in {host} of its memory"


def _describe_waiting(plan: plans.Plan) -> str:
    return f", {plan.ways[0].waiting:.0%} of them waiting for transfers" if plan.setup.devices > 1 else ""


def _print_ways(plan: plans.Plan, console: Console) -> None:
    """Print what each way to share the run sends, and what it costs, and the assumptions."""
    rows, first = [], "(as the commands)" if plan.more else "(planned)"
    for way in plan.ways:
        words = [word for word in plan.setup.words(way.setup) if not word.startswith("trainer.strategy")]
        name = " ".join([way.setup.strategy, *words, *([first] if way is plan.ways[0] else [])])
        fits = "yes" if way.memory.fits(plan.assumed.gpu.memory) else "no"
        sent, hours = way.transfers, _format_hours(way.gpu_hours)
        amounts = [f"{way.memory.peak / GIB:.2f}", fits, f"{sent.inside / 1e9:,.1f}", f"{sent.between / 1e9:,.1f}"]
        rows.append([f"  {name}", *amounts, f"{sent.seconds:.2f}", f"{sent.waits:.2f}", hours])
    if plan.setup.devices > 1:
        seconds = f"{plan.ways[0].computes:.2f} s"
        console.print(f"\nAn update computes for {seconds}. A GPU sends inside its machine, and a machine to others:")
        header = ("shared by", "GiB", "fits", "GB inside", "GB between", "s sending", "s waiting", "GPU-hours of a run")
        console.print(build_table(header, rows, right=header[1:]))
    console.print()
    rows = [list(row) for row in plan.assumed.describe(plan.work, plan.setup)]
    console.print(build_table(("for the time", "value", "from"), rows))
    console.print(plans.UNMEASURED)


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
        fits = "yes" if plan.fits else f"with {' '.join(plan.more)}" if plan.more else "no"
        rows.append(
            [cost.arm, format_count(plan.counts.total), runs, format_count(cost.items),
             f"{plan.memory.peak / GIB:.2f}", fits, format_range(*map(_format_hours, cost.gpu_hours))]
        )  # fmt: skip
    header = ("arm", "parameters", "trials + selection + seeds", unit, "GiB", f"fits {gpu.name}", "GPU-hours")
    console.print(f"sweep {sweep.name}")
    if sweep.more:
        console.print(f"As it is, it does not fit. Planned, here and in the commands, with {' '.join(sweep.more)}:")
    console.print(build_table(header, rows, right=("parameters", unit, "GiB", "GPU-hours")))
    first, hours = sweep.arms[0].plan, map(_format_hours, sweep.gpu_hours)
    console.print(
        f"\nAll arms: at most {format_count(sweep.items)} {unit}, {format_range(*hours)} GPU-hours at a utilisation of "
        f"{first.work.utilisation:.0%} (assumed; --mfu){_describe_waiting(first)}, without validation and, of which a "
        "dry run has the number, without extensions and challenges."
    )
    for line in sweep.power:
        console.print(line, markup=False)
    console.print()
    for name, text in _describe_launch(first, sweep.kept):
        console.print(f"  {name:15} {text}")
    _print_ways(first, console)
    for note in dict.fromkeys(note for cost in sweep.arms for note in cost.plan.notes):
        console.print(note)


def _format_hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else f"{hours:.2f}" if hours >= 0.01 else "less than 0.01"
