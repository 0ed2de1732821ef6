"""`ablate work`: one worker of a sweep, anywhere that its storage can be reached."""

from __future__ import annotations

import argparse
import os
import sys

import ablate
from ablate.cli.arguments import Verbs, add_storage, add_verb, parse_positive
from ablate.cli.output import repeat_command
from ablate.config.lazy import postpone_imports
from ablate.distributed import ranks, slurm

with postpone_imports():
    from ablate.scheduler import run as sweep_run
    from ablate.scheduler import storage as storages
    from ablate.scheduler import worker as workers

_EXAMPLE = """\
ablate work my --storage postgresql://me@db/ablate
  torchrun --nproc-per-node 8 -m ablate work my --storage postgresql://me@db/ablate"""
_PARENT = "stop when the process with this pid has ended, and leave the report to it"


def add_parser(verbs: Verbs) -> None:
    """Add the verb and its options."""
    text = "train trials of a sweep that has begun, as one more worker, until none is left"
    parser = add_verb(verbs, "work", text, _EXAMPLE, run)
    parser.add_argument("sweep", metavar="SWEEP", help="name of the sweep")
    parser.add_argument("--parent", type=parse_positive, metavar="PID", help=_PARENT)
    add_storage(parser)


def run(options: argparse.Namespace) -> int:
    """Work until nothing is left, and write the report if this worker ended last."""
    url = storages.storage_url(options.storage)
    worker = workers.Worker(options.sweep, url, options.parent)
    end = worker.run()
    while end == workers.SPOILED and ranks.world_size() > 1:  # a group cannot be started anew by one of its ranks
        end = worker.run()
    if end == workers.SPOILED:
        sys.stdout.flush()
        sys.stderr.flush()
        words = [worker.full_name if word == options.sweep else word for word in sys.argv[1:]]
        os.execv(sys.executable, [sys.executable, "-m", "ablate", *words])  # the next trial gets a fresh process
    if end == workers.STOPPED:
        if options.parent is None:
            print(f"Stopped. Its trial is free for others. Work on with:\n  {repeat_command('work')}", file=sys.stderr)
        if message := slurm.requeue(worker.signals):
            print(message, file=sys.stderr)
        return 130
    if options.parent is not None:
        return 0
    record = storages.read_sweep(worker.full_name, url)
    if sweep_run.close(worker.queue):
        ablate.report(record, storage=url)
    return 1 if len(record.runs.select(status="failed")) else 0
