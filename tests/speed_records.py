"""Records of sweeps with hand-made curves on fresh seeds, for tests of speed."""

from run_table import join

from ablate.sweeps.records import SweepRecord
from ablate.sweeps.runs import FRESH, Run
from ablate.sweeps.spec.sweep import Sweep
from ablate.verdict.looks import Looks

COSTS = {"flops_per_update": 100.0, "flops_before": 0.0, "seconds_per_update": 0.5, "company": 0}
BASE = [{25: 4.0 + i / 100, 50: 3.0 + i / 100, 100: 2.0 + i / 100} for i in range(5)]
FAST = [{25: 3.0 + i / 70, 50: 1.9 + i / 90, 100: 1.5 + i * i / 100} for i in range(5)]
SLOW = [{25: 5.0 + i / 70, 50: 4.0 + i / 90, 100: 2.5 + i * i / 100} for i in range(5)]


def build_run(arm, seed, curve, items=10, **costs):
    """One that ended at the last point of `curve`; None: it diverged."""
    status, step = ("completed", max(curve)) if curve else ("diverged", 3)
    value = curve[step] if curve else None
    metrics = {"val/loss": value} if curve else {}
    facts = {"ablate.hardware": costs.pop("hardware", "a processor")}
    return Run(arm, 0, status, {}, value, metrics, curve or {}, step, 1.0, None, "", items, seed=seed, facts=facts,
               costs={**COSTS, **costs})  # fmt: skip


def build_record(curves, costs=(), trivial_loss=None, **more):
    """A sweep with `curves`, arm -> its curves on fresh seeds, of which the first arm is the baseline; `costs`: arm ->
    those that differ."""
    kinds = dict(zip(curves, ("pre", "post", "mix", "lns"), strict=False))
    seeds = max(map(len, curves.values()))
    more = more if "search" in more else {"challenge": {"trials": 0}, **more}
    tree = {"name": "t", "arms": {arm: {"norm": kind} for arm, kind in kinds.items()}}
    spec = Sweep.from_tree({**tree, "search": {"optimizer.lr": [1e-3, 1e-2]}, "confirm": {"seeds": seeds}, **more})
    costs, seeds = dict(costs), spec.fresh_seeds(seeds)
    runs = {
        arm: [build_run(arm, seed, curve, **costs.get(arm, {})) for seed, curve in zip(seeds, own, strict=False)]
        for arm, own in curves.items()
    }
    trials = {arm: [build_run(arm, 0, {50: 2.0, 100: 1.0})] for arm in curves}
    ended = max(map(len, curves.values()))
    looks = {arm: Looks((ended,), ended) for arm in curves} if ended else {}
    chosen = dict.fromkeys(curves, 0)
    return SweepRecord("t", 1, spec, join({"search": trials, FRESH: runs}, trivial_loss), chosen=chosen, looks=looks)
