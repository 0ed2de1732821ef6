"""Trials of the demo's sweep per minute of a core: eager, compiled anew for each trial, and compiled once for all.

    python benchmarks/compiling.py                        # 16 trials of each side in turn, and the start before them
    python benchmarks/compiling.py --trials 4 --warm      # with the programs that this user's cache has

Each side is a process with a store of its own that trains the same trials, with one seed and rate after another, for
the demo's arms in turn. A round gives each side its next trial. Before it, `anew` forgets what it has compiled, and
finds the result of its compiler on the disk, as a new process does; `once` keeps its programs. The first trial of each
arm is the start, which is reported for itself: without --warm it begins with an empty cache. Times are those of the
processor, on one thread and with the C++ compiler's, so that other programs on the machine change them little.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from timing import Spread, between, positive

SIDES = ("eager", "anew", "once")
RATES = (3e-3, 2.5e-2)


def read_clock() -> float:
    """Seconds of processor time of this process and of the compilers that it has run."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def side(name: str, steps: int | None, store: str, pipe: Connection) -> None:
    """One side in a process of its own: gets the number of a trial, answers with its seconds and its loss."""
    os.environ |= {"ABLATE_STORE": store, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # as a worker of one thread
    import torch

    from ablate import Experiment, train
    from ablate.parallel.compiling import forget_programs
    from ablate.sweeps.spec.files import load_sweeps

    torch.set_num_threads(1)
    (spec,) = load_sweeps(Path(__file__).parent.parent / "sweeps" / "demo.yaml", {})
    arms = list(spec.own_arms)
    length = {} if steps is None else {"trainer.max_steps": steps, "trainer.val_check_interval": steps}

    def run(number: int) -> tuple[float, float]:
        settings: dict[str, Any] = {
            "seed": number,
            "optimizer.lr": RATES[number // len(arms) % len(RATES)],
            "trainer.compile": name != "eager",
        }
        if name == "anew":
            forget_programs()
        start = read_clock()
        arm = spec.arms[arms[number % len(arms)]].settings
        result = train(Experiment.from_mapping(spec.experiment, arm, settings, length), progress=False)
        return read_clock() - start, result.metrics["val/loss"]

    pipe.send(len(arms))
    while (number := pipe.recv()) is not None:
        pipe.send(run(number))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=positive, default=16, help="trials of each side after the start (default: 16)")
    parser.add_argument("--steps", type=positive, help="updates of a trial (default: the demo's)")
    parser.add_argument("--warm", action="store_true", help="use this user's cache of programs, not an empty one")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = {}, []
        for name in SIDES:
            if not given.warm:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / f"cache-{name}")
            pipes[name], theirs = context.Pipe()
            processes.append(context.Process(target=side, args=(name, given.steps, str(Path(folder) / name), theirs)))
            processes[-1].start()
            arms = pipes[name].recv()
        rounds = []
        for number in range(arms + given.trials):
            results = {}
            for name, pipe in pipes.items():
                pipe.send(number)
                results[name] = pipe.recv()
            rounds.append(results)
            shown = (f"{name} {seconds:.1f} s (loss {loss:.5f})" for name, (seconds, loss) in results.items())
            print(f"trial {number}: {', '.join(shown)}", flush=True)
        for pipe in pipes.values():
            pipe.send(None)
        for process in processes:
            process.join()
    later = rounds[arms:]
    for name in SIDES:
        start, total = (sum(results[name][0] for results in part) for part in (rounds[:arms], later))
        ratio = Spread.of([results[name][0] / results["eager"][0] for results in later])
        rate = 60 * len(later) / total
        print(f"{name:6} start of {arms} trials {start:6.1f} s, then {rate:5.1f} trials a minute", end="; ")
        print(f"time / eager {ratio.median:.3f} ({between(ratio.quartiles, 3)})")
    off = max(abs(r[name][1] - r["eager"][1]) / r["eager"][1] for r in rounds for name in SIDES[1:])
    print(f"largest relative difference of a final loss from eager's: {off:.1e}")


if __name__ == "__main__":
    main()
