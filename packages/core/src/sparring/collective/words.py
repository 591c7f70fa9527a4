"""Words between ranks about ranks, for transports that do not say who failed.

A rank that notices a failure ends too, and its end looks like a failure to the next. And where one
rank stops, the others wait for each other as well as for it. So ranks tell each other why they end,
and before the deadline ask each other whom they wait for. All then name the one that failed first.

    (4,) int64, 32 bytes:  kind | rank | round | 0

    kind       rank                                            round
    LEFT       -                                               -
    FAILED     whose failure the sender met                    -
    QUESTION   -                                               of the sender's questions
    ANSWER     whom the sender waits for, -1 is nobody         of the question
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sparring.collective.contract import OPERATION_TAG

__all__ = ["NOBODY", "WORD_TAG", "Failure", "Inquiry", "Word", "WordKind", "empty_word"]

WORD_TAG = OPERATION_TAG + 1
"""No user and no operation has this tag."""

NOBODY = -1


class WordKind(IntEnum):
    LEFT = 1
    FAILED = 2
    QUESTION = 3
    ANSWER = 4


@dataclass(frozen=True, slots=True)
class Word:
    """One message."""

    kind: WordKind
    rank: int = NOBODY
    round: int = 0

    def encoded(self) -> npt.NDArray[np.int64]:
        return np.array([self.kind, self.rank, self.round, 0], np.int64)

    @classmethod
    def decoded(cls, message: npt.NDArray[np.int64]) -> Word:
        return cls(WordKind(int(message[0])), int(message[1]), int(message[2]))


def empty_word() -> npt.NDArray[np.int64]:
    """Room for one message."""
    return np.zeros(4, np.int64)


@dataclass(frozen=True, slots=True)
class Failure:
    """Who failed, and what an error says was found."""

    culprit: int
    found: str


@dataclass(slots=True)
class Inquiry:
    """Finds out whose fault it is that nothing comes.

    Args:
        rank: who asks.
        deadline_seconds: for the words of an error.
    """

    rank: int
    deadline_seconds: float
    round: int = 0
    _asked_for: float | None = None
    _answers: dict[int, int] = field(default_factory=dict)

    def is_due(self, limit: float, now: float) -> bool:
        """Whether to ask all ranks now, for a wait that ends at `limit`; True once for each wait."""
        if now < limit - 0.05 * self.deadline_seconds or self._asked_for == limit:
            return False
        self._asked_for = limit
        self.round += 1
        self._answers.clear()
        return True

    def note(self, source: int, answer: Word) -> None:
        """`source` is alive, and said whom it waits for."""
        if answer.round == self.round:
            self._answers[source] = answer.rank

    def verdict(self, peer: int) -> Failure:
        """Who is to blame for a wait for `peer`: the end of the chain of those who wait."""
        culprit, seen = peer, {self.rank}
        while culprit in self._answers and culprit not in seen:
            seen.add(culprit)
            if self._answers[culprit] in (NOBODY, *seen):
                break
            culprit = self._answers[culprit]
        found = f"nothing came within {self.deadline_seconds:g} s"
        if culprit != peer:
            found += f", because it waits in turn for rank {culprit}"
        elif self._answers and culprit not in self._answers:
            found += ", and it does not answer"
        return Failure(culprit, found)
