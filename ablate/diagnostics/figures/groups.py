"""The models of a figure: the arms of sweeps, each with its fresh seeds, or single models."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from ablate import tracking
from ablate.config.errors import AblateError
from ablate.config.formatting import count_noun, join_words
from ablate.diagnostics.opening import OPENERS, split_label
from ablate.scheduler.donors import find_arm
from ablate.scheduler.storage import list_sweeps, read_sweep, storage_url
from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import Run
from ablate.sweeps.spec.references import parse_reference
from ablate.training.runs import has_checkpoint


@dataclass(frozen=True)
class Group:
    """The models behind one panel or one line."""

    label: str
    models: dict[int | None, str]
    """Seed -> a model's name for `open_model`; None for a model that is no seed of a sweep."""
    arm: str = ""
    """The arm in the sweep's file, whose depths are one line; the user's name for it, if there is one."""
    runs: tuple[Run, ...] = ()
    """Runs of the seeds of a sweep, in the order of `models`."""
    sweep: str = ""
    """The title of the sweep; "" for a model that is not of a sweep."""
    choice: str = ""
    """The choice of its point of a grid, in words; "" without a choice."""


@dataclass(frozen=True)
class Sources:
    """The models of a figure, with remarks."""

    groups: list[Group]
    notes: list[str]
    """Which points of grids are drawn; seeds that are missing, and what to do about it."""


def find_groups(names: Sequence[str], storage: str | None = None, checkpoints: bool = True) -> Sources:
    """Return the models of `names`: of a sweep, all its arms, each with its fresh seeds; of sweep:NAME/ARM, this arm;
    of any other name that `ablate diagnose` accepts, this model. For a grid, it is the best point of each arm and
    depth. Diverged seeds have no weights to measure and are left out; seeds without a checkpoint are left out if
    `checkpoints` are needed.

    Raises AblateError, for all names together, if there is an unknown one, and if a name has no model.
    """
    entries: list[tuple[str, Group]] = []
    notes: list[str] = []
    problems: list[str] = []
    started = list_sweeps(storage_url(storage))
    sweeps: dict[str, SweepRecord] = {}
    for name in names:
        label, rest = split_label(name)
        reference = parse_reference(rest)
        if reference is None and _is_model(rest, started):
            entries.append((label or rest.rpartition("/")[2], Group("", {None: rest})))
            continue
        title = reference.sweep if reference else rest
        record = sweeps[title] = sweeps[title] if title in sweeps else read_sweep(title, storage)
        if reference and reference.arm:  # as it is called in the sweep's file, or at a point of its grid
            found = find_arm(rest, record, reference.arm)
            cells = [cell for cell, one in record.spec.cells.items() if one.arm == reference.arm != found]
            arms = _describe_choice(record, found, cells, count_noun(len(cells), "point"))
        else:
            arms = choose_arms(record)
        own, missing = [], []
        for arm, choice in arms.items():
            group, told = _find_seeds(record, arm, checkpoints)
            own += [replace(group, choice=choice)] if group.models else []
            missing += told
        if not own:
            problems.append("\n".join([f"{rest} has no model to draw.", *missing]))
        notes += missing
        entries += [(label if len(own) == 1 else f"{label} " if label else "", group) for group in own]
    if problems:
        raise AblateError("\n".join(problems))
    groups = _label_groups(entries)
    labels = [group.label for group in groups]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise AblateError(
            f"Two models are called {join_words(twice)}: give one of them another name, LABEL={names[-1]}."
        )
    return Sources(groups, [f"{group.label}: {group.choice}." for group in groups if group.choice] + notes)


def _label_groups(entries: Sequence[tuple[str, Group]]) -> list[Group]:
    """Return the groups of (label of the user or its beginning or "", group) with their labels: by default the arm,
    with its point of the grid where it is drawn at several, and its sweep where there are several."""
    arms = [(group.sweep, group.arm) for _, group in entries]
    several = len({sweep for sweep, _ in arms if sweep}) > 1
    groups = []
    for label, group in entries:
        arm = label + group.arm if label.endswith(" ") else label or group.arm
        if not label or label.endswith(" "):
            short = group.arm if arms.count((group.sweep, group.arm)) == 1 else group.label
            label += f"{group.sweep}/{short}" if several and not label else short
        groups.append(replace(group, label=label, arm=arm))
    return groups


def choose_arms(record: SweepRecord) -> dict[str, str]:
    """Return the arms of a sweep; for one that tests all points of a grid, the best point of each arm and depth -> how
    it was chosen."""
    cells: dict[tuple[str, int], list[str]] = {}
    for name, cell in record.spec.cells.items():
        cells.setdefault((cell.arm, record.spec.own_base(name).model.layers), []).append(name)
    several = len(cells) > len({arm for arm, _ in cells})
    chosen: dict[str, str] = {}
    for (_, depth), names in cells.items():
        points = count_noun(len(names), "point") + (f" with {count_noun(depth, 'layer')}" if several else "")
        chosen |= _describe_choice(record, record.pick_cell(names), names, points)
    return chosen or dict.fromkeys(record.arms, "")


def _describe_choice(record: SweepRecord, chosen: str, names: Sequence[str], points: str) -> dict[str, str]:
    """Return the chosen arm of `names` -> its point, with the remark that it was chosen on the seeds that are shown."""
    if len(names) < 2:
        return {chosen: ""}
    point = chosen.removeprefix(record.spec.cells[chosen].arm).strip()
    return {chosen: f"at {point}, the best of its {points} on these seeds"}


def _is_model(name: str, started: Collection[str]) -> bool:
    """Return whether `name` is the name of a model rather than of a sweep."""
    if name.startswith(tuple(filter(None, OPENERS))):
        return True
    is_sweep = name.partition("@")[0] in started
    return not is_sweep and (os.path.exists(name) or (tracking.store_path() / "runs" / name).is_dir())


def _find_seeds(record: SweepRecord, arm: str, checkpoints: bool) -> tuple[Group, list[str]]:
    """Return the models of the fresh seeds of an arm, and notes on missing ones; for a sweep without fresh seeds, the
    trial that represents the arm."""
    where = f"{record.title}/{arm}"
    cell = record.spec.cells.get(arm)
    planned = record.spec.confirm.first_seeds if record.spec.confirm.most_seeds else 0
    if planned:
        runs = record.fresh(arm)
    else:
        settled = record.settled(arm)
        runs = record.runs.replace([settled] if settled else [])
    seeds = {run.seed: run for run in runs if run.run_id}
    endings = {s: outcome.ending for s, run in seeds.items() if (outcome := record.runs.find_outcome(run))}
    measured = {s: seeds[s] for s, ending in endings.items() if ending != "diverged"}
    kept = {s: run for s, run in measured.items() if not checkpoints or has_checkpoint(str(run.run_id))}
    notes = []
    if not planned:
        notes.append(f"{where}: the sweep has no fresh seeds (confirm.seeds), so it is one trial, without an interval.")
    if (left := max(planned, 1) - len(endings)) > 0:
        notes.append(f"{where}: {left} of {count_noun(max(planned, 1), 'seed')} not ended. Continue the sweep.")
    if diverged := [s for s, ending in endings.items() if ending == "diverged"]:
        notes.append(f"{where}: left out, as diverged: {_list_seeds(diverged)}.")
    if stuck := [s for s in kept if endings[s] == "stuck"]:
        notes.append(
            f"{where}: drawn, although stuck (no better than a predictor that ignores its inputs): "
            f"{_list_seeds(stuck)}."
        )
    if dropped := [s for s in measured if s not in kept]:
        notes.append(
            f"{where}: left out, as the sweep did not keep their checkpoints: {_list_seeds(dropped)}. Set checkpoints: "
            "all in its file, and run it again with --fresh."
        )
    models: dict[int | None, str] = {seed: str(run.run_id) for seed, run in kept.items()}
    return Group(arm, models, cell.arm if cell else arm, tuple(kept.values()), record.title), notes


def _list_seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if seeds[1:] else ''} {join_words(map(str, seeds))}"
