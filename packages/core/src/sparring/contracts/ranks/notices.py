"""Notices between ranks about ranks, for transports that do not say who failed.

A rank that notices a failure ends too, and its end looks like a failure to the next. And where one
rank stops, the others wait for each other as well as for it. So ranks tell each other why they end,
and before the deadline ask each other whom they wait for. All then name the one that failed first.

    (4,) int64, 32 bytes:  kind | rank | round | has_left

    kind       rank                                   round                       has_left
    LEFT       -                                      -                           -
    FAILED     whose failure the sender met           -                           whether that rank left
    QUESTION   -                                      of the sender's questions   -
    ANSWER     rank that is waited for, -1 for none   of the question             -
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sparring.contracts.ranks.collective import OPERATION_TAG

__all__ = ["NO_RANK", "NOTICE_TAG", "Failure", "Inquiry", "Notice", "NoticeKind", "empty_notice"]

NOTICE_TAG = OPERATION_TAG + 1
"""No user and no operation has this tag."""

NO_RANK = -1


class NoticeKind(IntEnum):
    LEFT = 1
    FAILED = 2
    QUESTION = 3
    ANSWER = 4


@dataclass(frozen=True, slots=True)
class Notice:
    """One message."""

    kind: NoticeKind
    rank: int = NO_RANK
    round: int = 0
    has_left: bool = False

    def encode(self) -> npt.NDArray[np.int64]:
        return np.array([self.kind, self.rank, self.round, self.has_left], np.int64)

    @classmethod
    def decode(cls, message: npt.NDArray[np.int64]) -> Notice:
        kind, rank, round_, has_left = message.tolist()
        return cls(NoticeKind(kind), rank, round_, bool(has_left))


def empty_notice() -> npt.NDArray[np.int64]:
    """Room for one message."""
    return np.zeros(4, np.int64)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed rank, and the cause that errors name."""

    culprit: int
    found: str
    has_left: bool = False

    @classmethod
    def left(cls, rank: int) -> Failure:
        """`rank` said that it goes."""
        return cls(rank, "it left the group", has_left=True)

    @classmethod
    def own(cls, culprit: int) -> Failure:
        """This rank gives up because `culprit` failed."""
        return cls(culprit, f"this rank has given up, because rank {culprit} failed")

    @classmethod
    def from_report(cls, source: int, notice: Notice) -> Failure:
        """Failure that `source` reported in a notice of kind FAILED."""
        became = "left the group" if notice.has_left else "failed"
        return cls(
            notice.rank, f"rank {source} reports that rank {notice.rank} {became}", notice.has_left
        )

    @classmethod
    def from_notice(cls, source: int, notice: Notice, rank: int) -> Failure:
        """Why `rank` waits for `source` in vain after a notice of kind LEFT or FAILED.

        With `has_left` it ends no other wait: ranks that leave one after another at the end miss each
        other, while the rest may still be exchanging what is their own.
        """
        # A rank that others take for dead knows better.
        if notice.kind is NoticeKind.LEFT or notice.rank == rank:
            return cls.left(source)
        return cls.from_report(source, notice)

    def notice(self) -> Notice:
        """With which the others are told."""
        return Notice(NoticeKind.FAILED, self.culprit, has_left=self.has_left)


@dataclass(slots=True)
class Inquiry:
    """Finds out whose fault it is that nothing comes.

    Args:
        rank: who asks.
        deadline_seconds: of each wait.
    """

    rank: int
    deadline_seconds: float
    round: int = 0
    _queried_at: float = 0.0
    _answers: dict[int, int] = field(default_factory=dict)

    def is_due(self, limit: float, now: float) -> bool:
        """Whether to ask all ranks now, for a wait that ends at `limit`.

        Many waits may be under way, with limits close to each other; one question serves them all.
        """
        ahead = 0.05 * self.deadline_seconds
        if now < limit - ahead or now < self._queried_at + ahead / 2:
            return False
        if now > self._queried_at + 2 * ahead:
            self._answers.clear()
        self._queried_at = now
        self.round += 1
        return True

    def note(self, source: int, answer: Notice) -> None:
        """`source` is alive, and said whom it waits for."""
        # The round before this one was a moment ago.
        if answer.round >= self.round - 1:
            self._answers[source] = answer.rank

    def verdict(self, peer: int, asked: Sequence[int] = ()) -> Failure:
        """Root cause of a wait for `peer`: the end of the chain of waiting ranks.

        A rank says only one of those that it waits for. Where the chain ends at a rank that is
        alive, it is one that says nothing at all, if there is one.

        Args:
            asked: the ranks that answer if they can.
        """
        culprit, seen = peer, {self.rank}
        while culprit in self._answers and culprit not in seen:
            seen.add(culprit)
            if self._answers[culprit] in (NO_RANK, *seen):
                silent = [rank for rank in asked if rank not in self._answers]
                culprit = silent[0] if silent else culprit
                break
            culprit = self._answers[culprit]
        found = f"nothing came within {self.deadline_seconds:g} s"
        if culprit != peer:
            found += f", because it waits in turn for rank {culprit}"
        elif self._answers and culprit not in self._answers:
            found += ", and it does not answer"
        return Failure(culprit, found)
