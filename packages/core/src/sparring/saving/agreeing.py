"""How ranks that save or load together learn that one of them cannot."""

from __future__ import annotations

import time
from enum import IntEnum

import numpy as np

from sparring.collective import Collective
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring.exchange.agreeing import raise_first

__all__ = ["Rounds", "agree", "check_alike"]

_ROUND_SECONDS = 2.0
"""How often ranks that work side by side tell each other how they get on: less than any deadline, and
so seldom that waiting for each other costs nothing to speak of."""


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

    Now and then all of them meet: so one that has ended early waits for the others as long as they
    take, and one that fails fails all of them soon. As all come after the same time, they hardly wait.

    Args:
        collective: of the ranks; all of them make one at the same time.
        what: is done, as for `agree`.
    """

    def __init__(self, collective: Collective, what: str) -> None:
        self._collective, self._what = collective, what
        self._next = time.monotonic() + _ROUND_SECONDS
        self._has_failed = False

    def go_on(self) -> None:
        """Called between pieces of work, of some milliseconds or seconds.

        Raises:
            SparringError: another rank failed.
        """
        if self._collective.world_size == 1 or time.monotonic() < self._next:
            return
        self._has_failed = True
        _tell(self._collective, self._what, _Standing.WORKING, None)
        self._has_failed = False
        self._next = time.monotonic() + _ROUND_SECONDS

    def end(self, error: Exception | None) -> None:
        """Returns when all ranks have ended well.

        Args:
            error: what went wrong on this one, that from `go_on` included.

        Raises:
            SparringError: as `agree`.
        """
        if self._has_failed and error is not None:
            raise error  # the others know
        mine = _Standing.DONE if error is None else _Standing.FAILED
        while not _tell(self._collective, self._what, mine, error):
            pass


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
