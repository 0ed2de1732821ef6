"""Every sampler and pruner that there is."""

from ablate.sweeps.search.pruners import pruners
from ablate.sweeps.search.samplers import samplers

SAMPLERS = {kind: {"kind": kind} for kind in samplers}
PRUNERS = {kind: {"kind": kind} for kind in pruners}
