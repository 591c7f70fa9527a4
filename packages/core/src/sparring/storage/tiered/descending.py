"""How rows go down: what a tier lets go is held for the next, which takes it sooner or later.

hand_down ──► holding ──send_down──► the tier below; the last one beside the steps that follow,
                 ▲                   where there is a background and it bears readers
                 └── settle: what failed is tried again, or a write has to wait for room
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sparring.errors import (
    CapacityError,
    CorruptDataError,
    DeadlineError,
    SparringError,
    StorageIOError,
)
from sparring.storage.background import Background
from sparring.storage.contract import Evicted, Keys, Rows
from sparring.storage.tiered.locking import ReaderWriterLock
from sparring.storage.tiered.options import TieredOptions
from sparring.storage.tiered.tier import Tier
from sparring.storage.tiered.writing_back import WriteBack
from sparring.table import TableConfig

__all__ = ["Descent"]

_SCORE_AND_KEY_BYTES = 16
_TYPED = (DeadlineError, CorruptDataError, CapacityError)


class Descent:
    """The way down between the tiers of a stack. Only the thread that writes to the stack uses it.

    Args:
        table: what the rows are.
        options: of the stack.
        tiers: hottest first.
        lock: held for writing while rows move between tiers that readers may not see change.
        let_go: is given what leaves the last tier.
    """

    def __init__(
        self,
        table: TableConfig,
        options: TieredOptions,
        tiers: Sequence[Tier],
        lock: ReaderWriterLock,
        let_go: Callable[[Evicted], None],
    ) -> None:
        self.is_through = options.write == "through"
        self._table = table
        self._holding_bytes = options.holding_bytes
        self._is_beside = options.write_back == "beside" and not self.is_through
        self._tiers = tiers
        self._lock = lock
        self._let_go = let_go
        self._is_failure_told = True
        self.write_back = WriteBack(
            table.name, tiers[-1], options.deadline_seconds, self._failure_beside
        )

    def use_background(self, background: Background) -> None:
        """Writes to the last tier there, where readers may see it change."""
        if self._is_beside and not self._tiers[-1].serves_readers_alone:
            self.write_back.use(background)

    @property
    def num_held(self) -> int:
        return sum(tier.holding.num_rows for tier in self._tiers)

    def forgive(self) -> None:
        """What failed is of no interest any more: all rows are gone."""
        self._is_failure_told = True

    # -- into the holding buffers; the lock is held for writing ----------------

    def hand_down(self, place: int, evicted: Evicted) -> None:
        """Puts what left a tier on its way to the next."""
        if not len(evicted):
            return
        if place == len(self._tiers) - 1:
            self._let_go(evicted)
            return
        is_dirty = self._tiers[place].dirty_of(evicted.keys)
        self._tiers[place + 1].holding.add(
            evicted.keys[is_dirty], evicted.rows[is_dirty], evicted.scores[is_dirty]
        )

    def hold_all(self, place: int, keys: Keys, rows: Rows) -> None:
        """Sends rows to a tier that the one above keeps."""
        self._tiers[place].holding.add(keys, rows, np.zeros(len(keys), np.uint64))

    # -- out of them ---------------------------------------------------------------

    def send_down(self) -> None:
        """Lets the tiers below take what was handed down. What fails waits, and is told of at
        the next write, or by the background; who writes through is told at once.

        Raises:
            SparringError: a tier did not take what was written through.
        """
        try:
            self._pour(self._tiers[:-1])
            if not self.write_back.begin():
                self._pour(self._tiers)
        except Exception as error:
            if self.is_through:
                self._is_failure_told = True
                raise self._failure(error, "the rows are kept in memory") from error
            self._is_failure_told = False

    def settle(self, num_rows: int) -> None:
        """Before a write of so many rows: tries again what failed, waits for room, and refuses the
        write where that must be.

        Raises:
            SparringError: the first write after a lower tier failed, which still does.
            CapacityError: there is no room for what waits, and it cannot go down.
            DeadlineError: there is none, and a write to the last tier has not ended in time.
        """
        for tier in self._tiers:
            tier.trim_dirty()
        if not any(tier.holding for tier in self._tiers):
            return
        is_beside = self.write_back.is_on
        if is_beside:
            self.write_back.wait(lambda: self._has_room(num_rows))
        try:
            self._pour(self._tiers[:-1])
            if not (is_beside and self._has_room(num_rows)):
                self._pour(self._tiers)
        except Exception as error:
            if not self._is_failure_told:
                self._is_failure_told = True
                raise self._failure(error, "this write changed nothing") from error
            if not self._has_room(num_rows):
                held = self._held_bytes()
                raise CapacityError(
                    f"table {self._table.name!r}: {self.num_held} rows wait in {held} bytes for a "
                    f"lower tier that fails ({type(error).__name__}: {error}), and {num_rows} more "
                    f"might not fit into holding_bytes={self._holding_bytes}. This write "
                    "changed nothing. Mend that tier, or raise holding_bytes",
                    table=self._table.name,
                    num_held=self.num_held,
                ) from error

    def join(self) -> None:
        """Returns when no write goes on beside; nothing has changed.

        Raises:
            DeadlineError: one has not ended in time.
        """
        self.write_back.wait()

    def drain(self) -> None:
        """Returns when all that was handed down has arrived.

        Raises:
            SparringError: a tier failed. What did not arrive waits.
        """
        self.join()
        try:
            self._pour(self._tiers)
        except Exception as error:
            self._is_failure_told = True
            raise self._failure(error, "nothing is durable yet that was not before") from error

    def _has_room(self, num_rows: int) -> bool:
        more = num_rows * (self._table.row_bytes + _SCORE_AND_KEY_BYTES)
        return self._held_bytes() + more <= self._holding_bytes

    def _held_bytes(self) -> int:
        return sum(tier.holding.num_bytes for tier in self._tiers)

    def _pour(self, tiers: Sequence[Tier]) -> None:
        """Moves what is held into the tiers, from the top; what a tier lets go goes on down."""
        for place, tier in enumerate(tiers):
            if not tier.holding:
                continue
            if tier.is_last:
                self.join()
            if tier.serves_readers_alone:
                with self._lock.writing():
                    self._arrive(place)
            else:
                self._arrive(place)

    def _arrive(self, place: int) -> None:
        tier = self._tiers[place]
        held = tier.holding.merged()
        if not self.is_through:
            tier.note_dirty(held.keys)
        self.hand_down(place, tier.receive(held))
        if self.is_through and not tier.is_last:
            self._tiers[place + 1].holding.add(held.keys, held.rows, held.scores)
        tier.holding.clear()

    def _failure_beside(self, cause: Exception) -> SparringError:
        return self._failure(cause, "the steps before have changed their rows", self._tiers[-1])

    def _failure(self, cause: Exception, state: str, tier: Tier | None = None) -> SparringError:
        kind = next((each for each in _TYPED if isinstance(cause, each)), StorageIOError)
        failing = (tier or next(tier for tier in self._tiers if tier.holding)).backend
        num_held = self.num_held
        return kind(
            f"table {self._table.name!r}: tier {failing!r} did not take rows from above "
            f"({type(cause).__name__}: {cause}); {num_held} rows wait in memory and are found "
            f"there, {state}. Mend that tier; the rows go down with the next write or flush",
            table=self._table.name,
            backend=failing,
            num_held=num_held,
        )
