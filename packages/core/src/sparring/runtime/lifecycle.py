"""Lifecycle of objects: closed by ``with`` or at exit, and unusable in a forked child."""

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
    """A context manager that calls `close` on exit."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources. A second call does nothing."""

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
    """Prevents the use of an object with locks or threads in processes forked after its creation.

    The copy in a forked child keeps the state of the locks but has no threads. Using it would hang,
    or repeat the writes of the parent.

    Args:
        what: description of the object, for messages.
    """

    __slots__ = ("_what", "made_in")

    def __init__(self, what: str) -> None:
        self.made_in = os.getpid()
        """Process that created the object."""
        self._what = what

    @property
    def is_own(self) -> bool:
        """Whether this process created the object."""
        return os.getpid() == self.made_in

    def check(self) -> None:
        """Raises `ClosedError` in all processes except the one that created the object."""
        check_process(self.made_in, self._what)


def check_process(made_in: int, what: str) -> None:
    """Checks the process like `ProcessGuard.check`, for an object that stores the process itself."""
    if (here := os.getpid()) != made_in:
        raise ClosedError(
            f"{what} was created in process {made_in} before a fork, and is used in process {here}; "
            "start workers with spawn, or create it after the fork",
            made_in=made_in,
            used_in=here,
        )


def at_exit(method: Callable[[], object]) -> None:
    """Registers a method to be called at exit, unless its object has been deleted before.

    Methods are called in reverse order of registration, and not in forked children. Errors of sparring
    are logged.
    """
    process = os.getpid()
    # Unregistered when the object is deleted, because a long program may create many objects.
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
    """Calls all functions, even if some raise. It is used to close several parts of an object.

    Args:
        calls: functions without arguments, called in this order.

    Raises:
        BaseException: the first exception; the others are logged. Exceptions that end the program,
            such as KeyboardInterrupt, take precedence over errors.
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
                "closing failed in another part too, as well as %s: %s: %s",
                type(first).__name__,
                type(other).__name__,
                other,
                exc_info=None if isinstance(other, SparringError) else other,
            )
    raise first
