"""Every sampler and pruner that there is without a network: the short kinds, and those of Optuna by name."""

from ablate.sweeps.search.pruners import pruners
from ablate.sweeps.search.samplers import samplers

ACCEPTED_SAMPLERS = {
    "CmaEsSampler": {},
    "GPSampler": {"n_startup_trials": 3},
    "NSGAIISampler": {"population_size": 3},
    "NSGAIIISampler": {"population_size": 3},
    "QMCSampler": {},
    "RandomSampler": {},
    "TPESampler": {"n_startup_trials": 3},
}
ACCEPTED_PRUNERS = {
    "HyperbandPruner": {},
    "MedianPruner": {},
    "NopPruner": {},
    "PercentilePruner": {"percentile": 50.0},
    "SuccessiveHalvingPruner": {},
}


def _list_all(registry, accepted):
    short = {kind: {"kind": kind} for kind in registry if "name" not in registry[kind].model_fields}
    return short | {name: {"kind": "optuna", "name": name, **arguments} for name, arguments in accepted.items()}


SAMPLERS, PRUNERS = _list_all(samplers, ACCEPTED_SAMPLERS), _list_all(pruners, ACCEPTED_PRUNERS)
