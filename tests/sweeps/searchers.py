"""Every sampler and pruner that there is."""

from ablate.sweeps.search.methods import pruners, samplers

SAMPLERS = {kind: {"kind": kind} for kind in samplers}
PRUNERS = {kind: {"kind": kind} for kind in pruners}
