"""The order of trials: the arm that gets the next one, so that every arm is treated alike, whoever asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ablate.config.errors import SweepError
from ablate.sweeps.arms import ArmTrials, Confirmation
from ablate.sweeps.storage import lock_storage

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.storages import BaseStorage


class TrialQueue:
    """The order of a sweep's trials: the search of all arms in turns, then the confirmation of all arms in turns.

    Any number of processes may work on one storage, each with a queue of its own.

    Args:
        arms: the arms.
        storage: what their studies lie in.
        confirm: opens the confirmation of an arm; None where no trial of it completed.
    """

    def __init__(
        self, arms: list[ArmTrials], storage: BaseStorage, confirm: Callable[[ArmTrials], Confirmation | None]
    ) -> None:
        self.arms, self.storage, self.confirm = arms, storage, confirm
        self.confirmations: list[Confirmation] | None = None

    def take(self) -> tuple[ArmTrials, Trial] | None:
        """The next trial and its arm; None where there is nothing to start now."""
        with lock_storage(self.storage):
            arm = self._pick_arm()
            return None if arm is None else (arm, arm.ask())

    def recover(self) -> int:
        """Puts up for another try what earlier sessions left; how many trials that were."""
        with lock_storage(self.storage):
            return sum(arm.recover() for arm in self.arms)

    def must_wait(self) -> bool:
        """Return whether trials are running, here or elsewhere, that must end before it is known whether all is done.
        Those of processes that are gone are put up for another try."""
        with lock_storage(self.storage):
            parts = [*self.arms, *(self.confirmations or ())]
            return sum(part.requeue_orphans() for part in parts) > 0 or any(part.tally().running for part in parts)

    def _pick_arm(self) -> ArmTrials | None:
        """Return the arm that is furthest behind, so that a sweep that is stopped has compared the arms evenly."""
        ready = [arm for arm in self.arms if self._is_ready(arm)]
        turn = self._find_furthest_behind(ready)
        if turn is None and not any(arm.tally().running for arm in self.arms):  # what is best is known now
            self._refuse_stuck([arm for arm in self.arms if arm not in ready])
            turn = self._find_furthest_behind(self._open_confirmations())
        return turn

    def _is_ready(self, arm: ArmTrials) -> bool:
        """Return whether the search of the arm that `arm` starts from, if any, has ended with a completed trial."""
        donor = self._find_donor(arm)
        if donor is None:
            return True
        tally = donor.tally()
        return not tally.open and not tally.running and donor.find_best() is not None

    def _find_donor(self, arm: ArmTrials) -> ArmTrials | None:
        return next((other for other in self.arms if other.arm == arm.waits_for), None)

    def _refuse_stuck(self, waiting: Sequence[ArmTrials]) -> None:
        """Raises SweepError where an arm waits for one that has ended without a completed trial."""
        for arm in waiting:
            donor = self._find_donor(arm)
            if donor is not None and donor.find_best() is None and not donor.tally().open:
                raise SweepError(
                    f"{arm.arm} starts from the best trial of {donor.arm}, and none of that arm is completed. The same "
                    "command tries failed trials again; a larger budget.trials tries further ones."
                )

    @staticmethod
    def _find_furthest_behind(parts: Sequence[ArmTrials]) -> ArmTrials | None:
        """Return the one of `parts` of which the least share is started; None where all are."""
        tallies = {part: part.tally() for part in parts}
        shares = {part: t.started / (t.started + t.open) for part, t in tallies.items() if t.open}
        return min(shares, key=lambda part: shares[part], default=None)

    def _open_confirmations(self) -> list[Confirmation]:
        """The confirmations of all arms. Another process may try a failed trial again, and find a better best with it:
        then another one is confirmed."""
        best = [trial.number for arm in self.arms if (trial := arm.find_best())]
        if self.confirmations is None or best != [known.confirmed.number for known in self.confirmations]:
            self.confirmations = [confirmation for arm in self.arms if (confirmation := self.confirm(arm))]
            for confirmation in self.confirmations:
                confirmation.recover()
        return self.confirmations
