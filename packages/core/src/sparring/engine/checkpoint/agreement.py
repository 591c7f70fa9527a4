"""Agreement of ranks that save or load together: one that cannot is known to all."""

from __future__ import annotations

import threading
from enum import IntEnum

import numpy as np

from sparring.contracts.collective import Collective
from sparring.errors import InternalError, InvalidArgumentError, SnapshotError
from sparring.exchange.agreement import raise_first

__all__ = ["Rounds", "agree", "check_alike"]

_ROUND_SECONDS = 2.0
"""Interval of heartbeats between ranks that work concurrently: less than any deadline."""

_LEAVE_SECONDS = 5.0


class _Standing(IntEnum):
    WORKING = 0
    DONE = 1
    FAILED = 2


def agree(collective: Collective, what: str, error: Exception | None) -> None:
    """Raises on all ranks what went wrong on any. All ranks call it.

    Args:
        what: was tried, for the message of ranks on which it did not fail.
        error: what went wrong on this one.

    Raises:
        SparringError: what went wrong on the first rank that failed, in its class, naming the rank
            as `rank`; `SnapshotError` where it is none of sparring's. On ranks that failed, `error`.
    """
    _tell(collective, what, _Standing.DONE if error is None else _Standing.FAILED, error)


def check_alike(collective: Collective, what: str, mine: str) -> None:
    """Returns if all ranks mean the same. All ranks call it.

    Args:
        what: is meant, in the plural, for the message.
        mine: what this rank means.

    Raises:
        InvalidArgumentError: naming what two of them mean.
    """
    if collective.world_size == 1:
        return
    told = collective.all_gather(np.frombuffer(mine.encode(), np.uint8))
    texts = [each.tobytes().decode() for each in told]
    for rank, text in enumerate(texts):
        if text != texts[0]:
            raise InvalidArgumentError(
                f"ranks were given different {what}: rank 0 {texts[0]}, rank {rank} {text}; give "
                "all ranks the same",
                rank=rank,
            )


class Rounds:
    """Ranks that each do their own share of one thing, for minutes perhaps.

    A thread of each meets those of the others now and then. So a rank that has ended early waits for
    the others as long as they take, whatever they wait for, and one that fails fails all of them soon.
    Nothing else may use the collective meanwhile. `end` or `leave` must follow.

    Args:
        collective: of the ranks; all of them make one at the same time.
        what: is done, as for `agree`.
    """

    def __init__(self, collective: Collective, what: str) -> None:
        self._collective, self._what = collective, what
        self._has_ended = threading.Event()
        self._error: Exception | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        if collective.world_size > 1:
            self._thread = threading.Thread(target=self._meet, name="sparring-rounds", daemon=True)
            self._thread.start()

    def go_on(self) -> None:
        """Called between pieces of work.

        Raises:
            SparringError: another rank failed.
        """
        if self._failure is not None:
            raise self._failure

    def end(self, error: Exception | None) -> None:
        """Returns when all ranks have ended well.

        Args:
            error: what went wrong on this one, that from `go_on` included.

        Raises:
            SparringError: as `agree`.
        """
        self._error = error
        self._has_ended.set()
        if self._thread is not None:
            self._thread.join()
        failure = self._failure or error
        if failure is not None:
            raise failure

    def leave(self, reason: BaseException) -> None:
        """In place of `end`, where KeyboardInterrupt, say, stopped this rank: the others are told."""
        self.begin_to_leave(reason)
        if self._thread is not None:
            self._thread.join(_LEAVE_SECONDS)

    def begin_to_leave(self, reason: BaseException) -> None:
        """As `leave`, which must follow, but does not wait."""
        self._error = InternalError(f"it was stopped ({reason!r})")
        self._has_ended.set()

    def _meet(self) -> None:
        """On the thread."""
        try:
            while True:
                # In this order: an error is there before it is said that this rank has ended.
                has_ended, error = self._has_ended.is_set(), self._error
                mine = _Standing.WORKING
                if has_ended:
                    mine = _Standing.DONE if error is None else _Standing.FAILED
                if _tell(self._collective, self._what, mine, error if has_ended else None):
                    return
                self._has_ended.wait(0.0 if has_ended else _ROUND_SECONDS)
        except BaseException as failure:
            self._failure = failure


def _tell(collective: Collective, what: str, mine: _Standing, error: Exception | None) -> bool:
    """Whether no rank works any more."""
    if collective.world_size == 1:
        if error is not None:
            raise error
        return True
    told = collective.all_gather(np.array([mine], np.uint8))
    standings = [int(each[0]) for each in told]
    if _Standing.FAILED in standings:
        raise_first(collective, error, f"{what}: ", "failed", otherwise=SnapshotError)
    return _Standing.WORKING not in standings
