"""The last word of a rank to the others: that it leaves, and whether somebody's failure made it.

A rank that notices a failure ends too, and its end looks like a failure to the next. With the last
word of each, all ranks name the one that failed first.

    (4,) int64, 32 bytes:  kind | culprit | 0 | 0
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.collective.contract import OPERATION_TAG

__all__ = ["FAREWELL_TAG", "Farewell", "empty_farewell"]

FAREWELL_TAG = OPERATION_TAG + 1
"""No user and no operation has this tag."""

_LEFT, _FAILED = 1, 2


@dataclass(frozen=True, slots=True)
class Farewell:
    """Why a rank is gone."""

    source: int
    """Who says so."""
    culprit: int | None
    """The rank whose failure `source` met; None where it left of its own accord."""

    def encoded(self) -> npt.NDArray[np.int64]:
        if self.culprit is None:
            return np.array([_LEFT, 0, 0, 0], np.int64)
        return np.array([_FAILED, self.culprit, 0, 0], np.int64)

    @classmethod
    def decoded(cls, source: int, message: npt.NDArray[np.int64]) -> Farewell:
        return cls(source, int(message[1]) if int(message[0]) == _FAILED else None)

    @property
    def found(self) -> str:
        """What an error says of it."""
        if self.culprit is None:
            return f"rank {self.source} left the group"
        return f"rank {self.source} reports that rank {self.culprit} failed"


def empty_farewell() -> npt.NDArray[np.int64]:
    """Room for one message."""
    return np.zeros(4, np.int64)
