"""Objects with an end: closed by ``with`` or at exit, and refused in a forked child."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

from sparring.errors import ClosedError, SparringError

__all__ = ["Closable", "ProcessGuard", "at_exit", "call_each", "check_process"]

_log = logging.getLogger(__name__)

_Self = TypeVar("_Self", bound="Closable")


class Closable(ABC):
    """A context manager whose end is `close`."""

    @abstractmethod
    def close(self) -> None:
        """Frees what it holds. A second call does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class ProcessGuard:
    """Refuses an object with locks or threads in processes that were forked after it was made.

    A forked child has a copy of it: locks stay held as they were, and its threads are missing. To use
    it would hang, or write what the parent writes too.

    Args:
        what: the object, for the message.
    """

    __slots__ = ("_what", "made_in")

    def __init__(self, what: str) -> None:
        self.made_in = os.getpid()
        """The process that made the object."""
        self._what = what

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made the object."""
        return os.getpid() == self.made_in

    def check(self) -> None:
        """Raises `ClosedError` in any other process than the one that made the object."""
        check_process(self.made_in, self._what)


def check_process(made_in: int, what: str) -> None:
    """As `ProcessGuard.check`, for an object that keeps the process itself."""
    if (here := os.getpid()) != made_in:
        raise ClosedError(
            f"{what} was made in process {made_in} before a fork, and is used in process {here}; "
            "start workers with spawn, or make it after the fork",
            made_in=made_in,
            used_in=here,
        )


def at_exit(method: Callable[[], object]) -> None:
    """Has the program's end call a method, unless its object is gone; the last one registered is first.

    Forked children do not call it. An error of sparring is logged.
    """
    process = os.getpid()
    # Not kept for objects that are gone: a long program may make many.
    found = weakref.WeakMethod(method, lambda _: atexit.unregister(end))

    def end() -> None:
        call = found()
        if call is None or os.getpid() != process:
            return
        try:
            call()
        except SparringError as error:
            _log.error("at exit: %s", error)

    atexit.register(end)


def call_each(calls: Iterable[Callable[[], object]]) -> None:
    """Calls all, whichever of them raises: ends of parts that must not keep each other open.

    Raises:
        BaseException: the first that was raised; the others are logged. One that ends the program, as
            KeyboardInterrupt, comes before errors.
    """
    raised: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            raised.append(error)
    if not raised:
        return
    first = min(raised, key=lambda each: isinstance(each, Exception))
    for other in raised:
        if other is not first:
            _log.error(
                "failed at the end, as well as %s: %s: %s",
                type(first).__name__,
                type(other).__name__,
                other,
                exc_info=None if isinstance(other, SparringError) else other,
            )
    raise first
