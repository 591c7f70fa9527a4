"""Ranks that do one task together: all of them proceed, or all of them raise.

raise_first   the vote was taken elsewhere, as by the headers of an exchange
agree         the vote: one byte from each rank, and texts only where one rank has an error
start         heartbeat: a rank that has ended its share waits for the others as long as they
              take, and one that fails or goes fails all of them soon
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, NoReturn

import numpy as np

from sparring import errors
from sparring.contracts.ranks.collective import Collective
from sparring.errors import (
    InternalError,
    InvalidArgumentError,
    PeerFailure,
    SnapshotError,
    SparringError,
)
from sparring.runtime.threads import start_thread

__all__ = ["Coordinator"]

_HEARTBEAT_SECONDS = 2.0
"""Interval at which ranks that work concurrently hear of each other: less than any deadline."""

_ABORT_SECONDS = 5.0


class _RankState(IntEnum):
    WORKING = 0
    DONE = 1
    FAILED = 2


class Coordinator:
    """One rank's side of a task. All ranks make one for the same task, and call the same methods in the
    same order; nothing else uses the collective meanwhile.

    Args:
        collective: of the ranks.
        task: begins the messages on ranks that have no error of their own: ``save of runs/a``.
    """

    def __init__(self, collective: Collective, task: str) -> None:
        self._collective, self._task = collective, task
        self._has_ended = threading.Event()
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        self._heartbeat: threading.Thread | None = None

    def agree(self, error: BaseException | None = None) -> None:
        """Returns if no rank has an error. After `start`: when all ranks have ended their shares, which
        ends the heartbeat.

        Args:
            error: why this rank cannot proceed.

        Raises:
            SparringError: `error`; on ranks that have none, that of the first rank that has one, in
                its class, naming the rank as `rank`; `SnapshotError` where it is none of sparring's.
        """
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is None:
            self._vote(_RankState.DONE if error is None else _RankState.FAILED, error)
            return
        self._error = error
        self._has_ended.set()
        heartbeat.join()
        failure = self._failure or error
        if failure is not None:
            raise failure

    def all_equal(self, mine: Mapping[str, Any], problem: str, remedy: str) -> None:
        """Returns if all ranks give the same.

        Args:
            mine: names to JSON values, or to further such mappings.
            problem: what it means that they do not: ``ranks load different snapshots``.
            remedy: what to do.

        Raises:
            InvalidArgumentError: with the name that differs as `setting`, both values, and as `rank`
                the first rank that differs from rank 0.
        """
        every = self.gather(mine)
        for rank, theirs in enumerate(every):
            for name, first, other in _find_differences(every[0], theirs):
                raise InvalidArgumentError(
                    f"{problem}: {name} is {first} on rank 0 and {other} on rank {rank}; {remedy}",
                    setting=name,
                    rank=rank,
                )

    def gather(self, value: Any) -> list[Any]:
        """JSON values of all ranks, in the order of ranks."""
        if self._collective.world_size == 1:
            return [value]
        text = json.dumps(value, sort_keys=True).encode()
        parts = self._collective.all_gather(np.frombuffer(text, np.uint8))
        return [json.loads(part.tobytes()) for part in parts]

    def raise_first(
        self,
        error: BaseException | None,
        became: str,
        otherwise: Callable[..., SparringError] = SnapshotError,
        **details: object,
    ) -> NoReturn:
        """Raises, on all ranks, what one of them cannot go on with.

        Args:
            error: of this rank; None: only others have one.
            became: follows the name of the rank in the message of ranks that have none: ``failed``.
            otherwise: makes the error in place of one that is none of sparring's.
            details: for the error on ranks that have none, besides those of the error itself and `rank`,
                which is the rank that has it; of a `PeerFailure` it stays the rank that failed.

        Raises:
            BaseException: `error`.
            SparringError: the error of the first rank that has one, of its class, naming that rank.
        """
        every = self.gather(_describe_error(error))
        if error is not None:
            raise error
        rank = next(rank for rank, each in enumerate(every) if each)
        first = every[rank]
        kind = _error_class(first["class"])
        found = {**details, **first["details"]}
        if kind is not PeerFailure or "rank" not in found:
            found["rank"] = rank
        text = f"{self._task}: rank {rank} {became}: {first['message']}"
        raise (kind or otherwise)(text, **found)

    # -- heartbeat

    def start(self) -> None:
        """Begins work of minutes, perhaps; `agree` or `abort` must follow."""
        if self._collective.world_size > 1:
            self._heartbeat = start_thread(self._send_heartbeats, "sparring-heartbeat")

    def check(self) -> None:
        """Called between pieces of work.

        Raises:
            SparringError: another rank failed.
        """
        if self._failure is not None:
            raise self._failure

    def abort(self, reason: BaseException, *, waits: bool = True) -> None:
        """In place of `agree`, where KeyboardInterrupt, say, stopped this rank: the others are told.

        Args:
            waits: for the others to hear of it, some seconds at most; otherwise a call that does must
                follow before anything else uses the collective.
        """
        self._error = InternalError(f"it was stopped ({reason!r})")
        self._has_ended.set()
        if waits and self._heartbeat is not None:
            self._heartbeat.join(_ABORT_SECONDS)

    def _send_heartbeats(self) -> None:
        """On the thread."""
        try:
            while True:
                # In this order: an error is there before it is said that this rank has ended.
                has_ended, error = self._has_ended.is_set(), self._error
                mine = _RankState.WORKING
                if has_ended:
                    mine = _RankState.DONE if error is None else _RankState.FAILED
                if self._vote(mine, error if has_ended else None):
                    return
                self._has_ended.wait(0.0 if has_ended else _HEARTBEAT_SECONDS)
        except BaseException as failure:
            self._failure = failure

    def _vote(self, mine: _RankState, error: BaseException | None) -> bool:
        """Whether no rank works any more."""
        if self._collective.world_size == 1:
            if error is not None:
                raise error
            return True
        votes = self._collective.all_gather(np.array([mine], np.uint8))
        standings = [int(each[0]) for each in votes]
        if _RankState.FAILED in standings:
            self.raise_first(error, "failed")
        return _RankState.WORKING not in standings


def _describe_error(error: BaseException | None) -> dict[str, Any]:
    if error is None:
        return {}
    details = getattr(error, "details", {}) if isinstance(error, SparringError) else {}
    return {
        "class": type(error).__name__,
        "message": str(error) or type(error).__name__,
        "details": {
            name: value for name, value in details.items() if isinstance(value, (str, int, float))
        },
    }


def _error_class(name: str) -> type[SparringError] | None:
    if name == "BackgroundError":
        from sparring.runtime.events import BackgroundError

        return BackgroundError
    found = getattr(errors, name, None)
    is_ours = isinstance(found, type) and issubclass(found, SparringError)
    return found if is_ours else None


def _find_differences(first: Any, other: Any, name: str = "") -> list[tuple[str, str, str]]:
    """The names under which two values differ, with what each of the two has there."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        found = []
        for key in sorted({*first, *other}):
            below = f"{name}.{key}" if name else key
            found += _find_differences(first.get(key, _MISSING), other.get(key, _MISSING), below)
        return found
    # By their text: to Python True is 1, and NaN is not NaN.
    texts = [
        "missing" if each is _MISSING else json.dumps(each, sort_keys=True)
        for each in (first, other)
    ]
    return [] if texts[0] == texts[1] else [(name, texts[0], texts[1])]


_MISSING = object()
