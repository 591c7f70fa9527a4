"""Coordinates a task of all ranks, so that either all ranks proceed or all of them raise.

raise_first   shares an error after the ranks have learned of it, for example by message headers
agree         votes: one byte per rank, and error messages only if a rank has an error
start         starts heartbeats: ranks that have finished wait for slower ones without a time limit, and
              if a rank fails or stops, all ranks raise soon
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
"""Interval of the heartbeats of ranks that work concurrently; less than any deadline."""

_ABORT_SECONDS = 5.0


class _RankState(IntEnum):
    WORKING = 0
    DONE = 1
    FAILED = 2


class Coordinator:
    """One rank's side of a task of all ranks.

    All ranks create a coordinator for the task, and call the same methods in the same order. Until
    the task has ended, the collective must not be used for anything else.

    Args:
        collective: the collective of the ranks.
        task: description of the task, such as ``save of runs/a``. Messages on ranks that have no error
            themselves start with it.
    """

    def __init__(self, collective: Collective, task: str) -> None:
        self._collective, self._task = collective, task
        self._has_ended = threading.Event()
        self._error: BaseException | None = None
        self._failure: BaseException | None = None
        self._heartbeat: threading.Thread | None = None

    def agree(self, error: BaseException | None = None) -> None:
        """Returns if no rank has an error. After `start`, waits until all ranks have finished.

        Args:
            error: the error of this rank, if it cannot proceed.

        Raises:
            BaseException: `error`, on this rank.
            SparringError: on ranks without an error, the error of the first rank that has one, with the
                same class and the attribute `rank`; `SnapshotError` if it is not an error of sparring.
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
        """Checks that all ranks pass the same values.

        Args:
            mine: name → JSON value or nested mapping, of this rank.
            problem: description of a difference, such as ``ranks load different snapshots``.
            remedy: the fix, for the message.

        Raises:
            InvalidArgumentError: values differ. The attribute `setting` is the name that differs, and
                `rank` the first rank that differs from rank 0; the message contains both values.
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
        """Returns the values of all ranks, in rank order. All ranks must call it.

        Args:
            value: value of this rank, which can be converted to JSON.
        """
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
        """Raises an error on all ranks, after at least one rank has reported one.

        Args:
            error: the error of this rank, or None if only other ranks have one.
            became: verb that follows the rank in messages on ranks without an error, such as
                ``failed``.
            otherwise: class of the error on other ranks if the error is not one of sparring.
            details: additional details of the error on ranks without an error. Its `rank` is the rank
                with the error; for a `PeerFailure`, the rank that failed.

        Raises:
            BaseException: `error`, on this rank.
            SparringError: on ranks without an error, the error of the first rank that has one.
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
        """Starts heartbeats for work that may take minutes; `agree` or `abort` must follow."""
        if self._collective.world_size > 1:
            self._heartbeat = start_thread(self._send_heartbeats, "sparring-heartbeat")

    def check(self) -> None:
        """Checks whether another rank has failed. Called repeatedly during the work.

        Raises:
            SparringError: another rank failed.
        """
        if self._failure is not None:
            raise self._failure

    def abort(self, reason: BaseException, *, waits: bool = True) -> None:
        """Notifies the other ranks that this rank was stopped, for example by KeyboardInterrupt.

        Called instead of `agree`.

        Args:
            reason: the exception that stopped this rank.
            waits: whether to wait a few seconds for the notification to be sent. If not, another call
                that waits must follow before the collective is used otherwise.
        """
        self._error = InternalError(f"it was stopped ({reason!r})")
        self._has_ended.set()
        if waits and self._heartbeat is not None:
            self._heartbeat.join(_ABORT_SECONDS)

    def _send_heartbeats(self) -> None:
        """Votes repeatedly, on a separate thread, until all ranks have finished or one has failed."""
        try:
            while True:
                # Read in this order, because the error is set before the event.
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
        """Returns whether all ranks have finished."""
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
    """Returns the names for which two values differ, with both values as text."""
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        found = []
        for key in sorted({*first, *other}):
            below = f"{name}.{key}" if name else key
            found += _find_differences(first.get(key, _MISSING), other.get(key, _MISSING), below)
        return found
    # Compared as text, because in Python True equals 1, and NaN does not equal NaN.
    texts = [
        "missing" if each is _MISSING else json.dumps(each, sort_keys=True)
        for each in (first, other)
    ]
    return [] if texts[0] == texts[1] else [(name, texts[0], texts[1])]


_MISSING = object()
