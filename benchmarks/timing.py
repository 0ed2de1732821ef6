"""Two things timed against each other, alternating in one run, and what their ratio's spread is."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Spread:
    """Where the ratios of the pairs lie."""

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]
    """Of 95 % for the median, from the ranks of the ratios; their range where there are fewer than six."""
    range: tuple[float, float]

    @classmethod
    def of(cls, ratios: list[float]) -> Spread:
        ordered, n = sorted(ratios), len(ratios)
        low, middle, high = statistics.quantiles(ordered, n=4, method="inclusive") if n > 1 else ordered * 3
        rank = max(0, math.floor(n / 2 - 0.98 * n**0.5))  # the normal approximation of the binomial
        return cls(middle, (low, high), (ordered[rank], ordered[-1 - rank]), (ordered[0], ordered[-1]))


@dataclass
class Pairs:
    """Seconds of our segments, and of the peer's beside them."""

    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """The peer's time over ours, of each pair: above 1 ours is faster."""
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    def spread(self) -> Spread:
        return Spread.of(self.ratios())


def nothing() -> None:
    """The CPU is done when a call returns."""


def seconds(run: Run, times: int, synchronize: Run = nothing, clock: Clock = time.perf_counter) -> float:
    """Seconds that `times` calls take. `synchronize` waits for the device. `clock`: `time.process_time` counts the time
    of the processor, which other processes of a busy machine do not add to."""
    synchronize()
    start = clock()
    for _ in range(times):
        run()
    synchronize()
    return clock() - start


def alternating(
    ours: Run,
    theirs: Run,
    pairs: int,
    segment: int,
    skip: int = 3,
    synchronize: Run = nothing,
    clock: Clock = time.perf_counter,
) -> Pairs:
    """Times `pairs` segments of each side, after `skip` calls of each. Who goes first changes from pair to pair."""
    found = Pairs()
    for run in (ours, theirs):
        seconds(run, skip, synchronize)
    for pair in range(pairs):
        sides = [(ours, found.ours), (theirs, found.theirs)]
        for run, times in sides if pair % 2 == 0 else reversed(sides):
            times.append(seconds(run, segment, synchronize, clock))
    return found


class Turns:
    """Called after each of our updates; after every `segment` of them lets each peer make as many, and times all.

    Args:
        peers: by name, one update of each.
        segment: updates of a turn.
        skip: updates of each side before the first turn, which are not timed: warm-up and compilation.
        synchronize: waits for the device.
        turn: called with the name of a side before its turn and, at its end, with None.
    """

    def __init__(
        self,
        peers: Mapping[str, Run],
        segment: int,
        skip: int,
        synchronize: Run = nothing,
        turn: Callable[[str | None], None] = lambda name: None,
    ) -> None:
        self.peers, self.segment, self.skip, self.synchronize, self.turn = peers, segment, skip, synchronize, turn
        self.updates = 0
        self.ours: list[float] = []
        self.theirs: dict[str, list[float]] = {name: [] for name in peers}
        self._since = 0.0

    def __call__(self) -> bool:
        self.updates += 1
        if self.updates < self.skip:
            return False
        if self.updates == self.skip:
            for run in self.peers.values():
                seconds(run, self.skip, self.synchronize)
        elif (self.updates - self.skip) % self.segment:
            return False
        else:
            self.synchronize()
            self.ours.append(time.perf_counter() - self._since)
            self.turn(None)
            for name, run in self.peers.items():
                self.turn(name)
                self.theirs[name].append(seconds(run, self.segment, self.synchronize))
                self.turn(None)
        self.turn("ours")
        self.synchronize()
        self._since = time.perf_counter()
        return False

    def pairs(self, name: str) -> Pairs:
        """Our turns, and those of the peer `name` beside them."""
        return Pairs(self.ours, self.theirs[name])


def between(pair: tuple[float, float], digits: int = 2) -> str:
    """Two numbers as `1.01 ... 1.05`."""
    return f"{pair[0]:.{digits}f} ... {pair[1]:.{digits}f}"


def positive(text: str) -> int:
    """A whole number above 0, from the command line."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return value
