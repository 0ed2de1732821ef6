"""The fuzzers for long: `python tests/fuzz/run.py --minutes 30`, which is `make fuzz`.

Each fuzzer runs in a child process, a batch of examples at a time. A batch that fails says which example it was, in
its smallest form; one that waits for half a minute, or whose process ends by a signal, is found by what it wrote down
before it began the call.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HANG = 30.0
"""Seconds after which a call hangs, on a machine that may be busy; ten of computing are told by the call itself."""
BATCH = {"configurations": 200, "files": 40, "plans": 50, "trainings": 40, "arm_names": 40}
"""Examples of one child: by the fuzzer's name, or by what its examples are."""
LEAST = {"configurations": 10_000, "files": 1_000}
"""Examples that half an hour is to try on two cores."""
ROOT = Path(__file__).parents[2]


def run_batch(name: str, seed: int, count: int, folder: Path) -> int:
    """The life of a child: `count` examples of the fuzzer `name`. The number of examples is its last line."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    import torch
    from fuzz.bench import Bench
    from fuzz.cases import CASES
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as start_at

    torch.set_num_threads(1)
    bench, case, tried = Bench(folder), CASES[name], Counter()

    @start_at(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(case.examples)
    def run(example: object) -> None:
        tried["examples"] += 1
        case.check(bench, example)

    try:
        run()
    finally:
        print(f"\n{tried['examples']} examples", flush=True)
    return 0


@dataclass
class Child:
    """A batch that is running."""

    name: str
    seed: int
    process: subprocess.Popen[str]
    state: Path
    output: Path
    folder: Path

    def find_call(self) -> tuple[str, float]:
        """The call that runs now, and for how long; ('', 0) between two."""
        try:
            now = json.loads(self.state.read_text())
        except (OSError, ValueError):
            return "", 0.0
        return now["command"], time.time() - now["since"] if now["command"] else 0.0

    def describe_failure(self) -> str | None:
        """What went wrong, once it has ended; None where nothing did."""
        status = self.process.returncode
        if status == 0:
            return None
        text = self.output.read_text(errors="replace")
        if status < 0 or status in (134, 139):
            return f"its process ended with {status} in\n{self.find_call()[0]}\n{text[-1500:]}"
        return text[-6000:]

    def count(self) -> int:
        """The examples that it tried."""
        last = self.output.read_text(errors="replace").strip().rpartition("\n")[2].split()
        return int(last[0]) if last[1:] == ["examples"] else 0


def start(name: str, seed: int, count: int, folder: Path) -> Child:
    """Start a batch."""
    place = folder / f"{name}-{seed}"
    place.mkdir()
    state, output = folder / f"{name}-{seed}.json", folder / f"{name}-{seed}.txt"
    words = [sys.executable, __file__, "--child", name, str(seed), str(count), str(place)]
    environment = {**os.environ, "ABLATE_FUZZ_STATE": str(state), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    with output.open("w") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
        )
    return Child(name, seed, process, state, output, place)


def main() -> int:
    """Run batches until the time is over; return 1 where any failed, or fewer examples were tried than are wanted."""
    if sys.argv[1:2] == ["--child"]:
        name, seed, count, folder = sys.argv[2:6]
        return run_batch(name, int(seed), int(count), Path(folder))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch; another: other examples")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", help="one fuzzer")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests"))
    sys.path.insert(0, str(ROOT))
    from fuzz.cases import CASES

    folder = Path(tempfile.mkdtemp(prefix="ablate-fuzz-"))
    shares = {name: case.share for name, case in CASES.items() if options.only in (None, name)}
    order, failures = random.Random(options.seed), 0
    tried: Counter[str] = Counter()
    end, seed, running = time.monotonic() + 60 * options.minutes, options.seed, list[Child]()
    spent: Counter[str] = Counter()  # batches, in terms of their share
    while running or time.monotonic() < end:
        while len(running) < options.processes and time.monotonic() < end:
            name = min(shares, key=lambda name: (spent[name] / shares[name], order.random()))
            spent[name] += 1
            running.append(start(name, seed, BATCH.get(name, BATCH[CASES[name].what]), folder))
            seed += 1
        time.sleep(0.2)
        for child in list(running):
            command, seconds = child.find_call()
            hangs = seconds > HANG
            late = time.monotonic() > end + 60
            if child.process.poll() is None and not hangs and not late:
                continue
            if child.process.poll() is None:
                os.killpg(child.process.pid, signal.SIGKILL)
                child.process.wait()
            running.remove(child)
            text = f"hangs for {seconds:.0f} s: {command}" if hangs else None if late else child.describe_failure()
            tried[child.name] += child.count()
            if text:
                failures += 1
                print(f"\n--- {child.name}, seed {child.seed}:\n{text}", flush=True)
            shutil.rmtree(child.folder, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    sums = Counter[str]()
    for name, count in tried.items():
        sums[CASES[name].what] += count
        print(f"{name:22}{count:>8,}")
    print(f"{sums['configurations']:,} configurations and {sums['files']:,} files, {failures} failures")
    least = {what: math.ceil(count * options.minutes / 30) for what, count in LEAST.items()}
    few = [f"fewer {what} than {count:,}" for what, count in least.items() if sums[what] < count and not options.only]
    print("\n".join(few) or "enough")
    return int(bool(failures or few))


if __name__ == "__main__":
    sys.exit(main())
