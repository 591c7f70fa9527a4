"""Objects that are closed at the end of a ``with`` block."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TypeVar

from sparring.errors import SparringError

__all__ = ["Closable", "call_each"]

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
