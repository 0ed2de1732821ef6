"""The order of trials: the arm of the next trial, chosen so that all arms are treated equally by all processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from ablate.config.errors import SweepError
from ablate.sweeps.arms import ArmTrials, Tally
from ablate.sweeps.confirmation import Confirmation
from ablate.sweeps.storage_lock import do_locked

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.storages import BaseStorage

T = TypeVar("T")


class TrialQueue:
    """The order of a sweep's trials: the search of all arms in turns, then the runs on further seeds in turns.

    Any number of processes may work on one storage, each with a queue of its own.

    Args:
        arms: the arms.
        storage: the storage of their studies.
    """

    def __init__(self, arms: list[ArmTrials], storage: BaseStorage) -> None:
        self.arms, self.storage = arms, storage
        self.confirmation = Confirmation(arms, storage)

    @property
    def parts(self) -> list[ArmTrials]:
        """All sources of trials that this process knows."""
        return [*self.arms, *self.confirmation.parts.values()]

    def _do_locked(self, step: Callable[[], T]) -> T:
        """Return the result of `step`, called under the lock of the storage: it sees what others have written, and they
        write nothing meanwhile."""

        def refresh_first() -> T:
            for part in self.parts:
                part.refresh()
            return step()

        return do_locked(self.storage, refresh_first)

    def take(self) -> tuple[ArmTrials, Trial] | None:
        """Return the next trial and its arm; None if there is nothing to start now."""

        def step() -> tuple[ArmTrials, Trial] | None:
            for part in self.parts:  # first: one whose processes died too often has failed, and is not open
                part.free_orphans()
            arm = self._pick_arm()
            return None if arm is None else (arm, arm.ask())

        return self._do_locked(step)

    def recover(self) -> int:
        """Begin a session: put up the trials that earlier ones left, and return their number."""

        def step() -> int:
            for arm in self.arms:
                arm.begin_session()
            return sum(arm.recover() for arm in self.arms)

        return self._do_locked(step)

    def must_wait(self) -> bool:
        """Return whether there are running trials, here or elsewhere, on which the end of the sweep depends, or trials
        that can be started since the call of `take`. Trials of processes that have ended are freed."""

        def step() -> bool:
            parts = self.parts
            if sum(part.free_orphans() for part in parts) > 0 or any(part.tally().running for part in parts):
                return True
            return self._pick_arm() is not None or any(part.tally().running for part in self.parts)

        return self._do_locked(step)

    def _pick_arm(self) -> ArmTrials | None:
        """Return the arm that is furthest behind, so that a sweep that is stopped has compared the arms evenly."""
        ready = [arm for arm in self.arms if self._is_ready(arm)]
        # counted once: the trial of a process that dies between two counts would be missed by both
        tallies = {arm: arm.tally() for arm in self.arms}
        turn = self._find_furthest_behind({arm: tally for arm, tally in tallies.items() if arm in ready})
        if turn is not None or any(tally.running for tally in tallies.values()):
            return turn
        self._refuse_stuck([arm for arm in self.arms if arm not in ready])  # what is best is known now
        while True:
            runs: dict[ArmTrials, Tally] = {part: part.tally() for part in self.confirmation.parts.values()}
            turn = self._find_furthest_behind(runs)
            running = any(tally.running for tally in runs.values())
            if turn is not None or running or not self.confirmation.advance():
                return turn

    def _is_ready(self, arm: ArmTrials) -> bool:
        """Return whether the search of the arm that `arm` starts from, if any, has ended with a completed trial."""
        donor = self._find_donor(arm)
        if donor is None:
            return True
        tally = donor.tally()
        return not tally.can_start and not tally.running and donor.find_best() is not None

    def _find_donor(self, arm: ArmTrials) -> ArmTrials | None:
        return next((other for other in self.arms if other.arm == arm.waits_for), None)

    def _refuse_stuck(self, waiting: Sequence[ArmTrials]) -> None:
        """Raise SweepError if an arm waits for an arm that has ended without a completed trial."""
        for arm in waiting:
            donor = self._find_donor(arm)
            if donor is not None and donor.find_best() is None and not donor.tally().can_start:
                raise SweepError(
                    f"{arm.arm} starts from the best trial of {donor.arm}, and no trial of that arm is completed. The "
                    "same command retries failed trials; a larger budget.trials allows further ones."
                )

    @staticmethod
    def _find_furthest_behind(tallies: Mapping[ArmTrials, Tally]) -> ArmTrials | None:
        """Return the key of `tallies` with the smallest started share, of the arm with the smallest started share; None
        if all are started."""
        started, total = Counter[str](), Counter[str]()
        for part, tally in tallies.items():
            started[part.arm] += tally.started
            total[part.arm] += tally.started + tally.open
        shares = {
            part: (started[part.arm] / total[part.arm], tally.started / (tally.started + tally.open))
            for part, tally in tallies.items()
            if tally.can_start
        }
        return min(shares, key=lambda part: shares[part], default=None)
