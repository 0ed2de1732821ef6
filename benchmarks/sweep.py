"""What a sweep costs beyond its trainings, and what a second worker brings, as ratios of sides that alternate.

    python benchmarks/sweep.py                      # 50 trials of each side, in 5 rounds
    python benchmarks/sweep.py --trials 20 --rounds 2 --steps 100

Three sides train the same experiments: a loop that calls `ablate.train` in one process, a sweep with one worker, and a
sweep with two. The first two are pinned to one core, the third may use two; each computes on one thread per trial. A
round gives every side the next trials in turn. Every side tracks its runs in MLflow, in a store of its own.

The loop imports everything before the clock. A sweep starts its workers in each round, and a process' first training is
slower than the next ones. So a side's time is given twice: for all trials of a round with the start of the workers, and
per trial from the moment at which each of its processes has ended its first one to the end of the sweep, report
included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from timing import positive

SIDES = {"loop": (0, 1), "sweep": (1, 1), "two workers": (2, 2)}  # workers, cores


def tree(trials: int, steps: int) -> dict[str, object]:
    """A sweep of tiny trainings: the model of the demo's width with two layers."""
    return {
        "name": "overhead",
        "experiment": {
            "model": {"kind": "llama", "hidden": 64, "layers": 2, "heads": 2, "mlp": 172},
            "data": {"kind": "topics", "seq_len": 64, "val_fraction": 0.01},
            "trainer": {"max_steps": steps, "batch_size": 8},
        },
        "search": {"optimizer.lr": {"low": 1e-4, "high": 1e-2, "log": True}},
        "sampler": "random",
        "budget": {"trials": trials},
    }


def side(workers: int, cores: int, steps: int, store: str, pipe: Connection) -> None:
    """One side in a process of its own: gets numbers of trials to add, answers with the seconds that each of them took,
    in all and after the first of every process."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    os.environ["ABLATE_STORE"] = store
    import torch

    import ablate.training.fit  # noqa: F401 - what trials need
    from ablate import Experiment, Sweep, sweep, train

    torch.set_num_threads(1)
    ends: list[float] = []

    def loop(count: int) -> None:
        from optuna import create_study, logging

        from ablate.scheduler.samplers import build_sampler

        logging.set_verbosity(logging.ERROR)
        spec = Sweep.from_tree(tree(len(ends) + count, steps))
        for _ in range(count):
            trial = create_study(sampler=build_sampler(spec.sampler, len(ends))).ask()
            lr = trial.suggest_float("optimizer.lr", 1e-4, 1e-2, log=True)
            train(Experiment.from_mapping(spec.experiment, {"optimizer.lr": lr}), progress=False)
            ends.append(time.time())

    def run_sweep(count: int) -> None:
        from optuna import load_study

        record = sweep(Sweep.from_tree(tree(len(ends) + count, steps)), workers=workers, progress=False)
        assert record.runs.count_statuses()["completed"] == len(ends) + count
        study = load_study(study_name="overhead@1/all", storage=f"sqlite:///{store}/optuna.db")
        ends[:] = sorted(trial.datetime_complete.timestamp() for trial in study.trials if trial.datetime_complete)

    run: Callable[[int], None] = run_sweep if workers else loop
    first = max(workers, 1)
    pipe.send("ready")
    while count := pipe.recv():
        start, before = time.time(), len(ends)
        run(count + first)
        end = time.time()
        pipe.send(((end - start) / (count + first), (end - ends[before + first - 1]) / count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=positive, default=50, help="trials of each side (default: 50)")
    parser.add_argument("--rounds", type=positive, default=5, help="rounds that they are spread over (default: 5)")
    parser.add_argument("--steps", type=positive, default=150, help="updates of a trial (default: 150)")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = {}, []
        for name, (workers, cores) in SIDES.items():
            pipes[name], theirs = context.Pipe()
            store = str(Path(folder) / name.replace(" ", "-"))
            processes.append(context.Process(target=side, args=(workers, cores, given.steps, store, theirs)))
            processes[-1].start()
            pipes[name].recv()
        for number in range(1, given.rounds + 1):
            for name, pipe in pipes.items():
                pipe.send(given.trials // given.rounds)
                seconds[name].append(pipe.recv())
            shown = (f"{name} {times[-1][0]:.2f} s ({times[-1][1]:.2f})" for name, times in seconds.items())
            print(f"round {number}, a trial with the start (without): {', '.join(shown)}", flush=True)
        for pipe in pipes.values():
            pipe.send(0)
        for process in processes:
            process.join()
    for i, what in enumerate(("with the start of the workers", "after their start")):
        each = {name: sum(times[i] for times in own) / given.rounds for name, own in seconds.items()}
        print(f"{what}: {given.trials} trials of {given.steps} updates, {each['loop']:.2f} s each in a loop")
        print(f"  sweep / loop, one core:              {each['sweep'] / each['loop']:.3f}")
        print(f"  trials per hour, two workers / one:  {each['sweep'] / each['two workers']:.3f}")


if __name__ == "__main__":
    main()
