"""Failure detector: notices between ranks, for transports that do not report which rank failed.

A rank that detects a failure also stops, which looks like a failure to the next rank. If one rank
hangs, the others wait for each other as well as for it. Therefore ranks notify each other why they
stop, and shortly before the deadline they query each other which rank they wait for. As a result, all
errors name the rank that failed first.

    (4,) int64, 32 bytes:  kind | rank | round | has_left

    kind       rank                                   round                       has_left
    LEFT       -                                      -                           -
    FAILED     rank whose failure the sender found    -                           whether that rank left
    QUESTION   -                                      number of the question      -
    ANSWER     rank that is waited for, -1 for none   number of the question      -
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
"""Tag of notices; neither users nor operations use it."""

NO_RANK = -1


class NoticeKind(IntEnum):
    """Kinds of notices; see the module for their fields."""

    LEFT = 1
    FAILED = 2
    QUESTION = 3
    ANSWER = 4


@dataclass(frozen=True, slots=True)
class Notice:
    """One message of the failure detector; see the module for the fields."""

    kind: NoticeKind
    rank: int = NO_RANK
    round: int = 0
    has_left: bool = False

    def encode(self) -> npt.NDArray[np.int64]:
        """Returns the message, ``(4,)`` int64."""
        return np.array([self.kind, self.rank, self.round, self.has_left], np.int64)

    @classmethod
    def decode(cls, message: npt.NDArray[np.int64]) -> Notice:
        """Creates a notice from a message.

        Args:
            message: ``(4,)`` int64, the result of `encode` on another rank.

        Raises:
            ValueError: the kind is unknown.
        """
        kind, rank, round_, has_left = message.tolist()
        return cls(NoticeKind(kind), rank, round_, bool(has_left))


def empty_notice() -> npt.NDArray[np.int64]:
    """Allocates the buffer of one message, ``(4,)`` int64."""
    return np.zeros(4, np.int64)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed rank, and the cause for error messages.

    Args:
        culprit: the rank that failed.
        found: the cause.
        has_left: whether the rank left the group regularly.
    """

    culprit: int
    found: str
    has_left: bool = False

    @classmethod
    def left(cls, rank: int) -> Failure:
        """Returns the failure of a wait for a rank that left the group.

        Args:
            rank: the rank that left.
        """
        return cls(rank, "it left the group", has_left=True)

    @classmethod
    def own(cls, culprit: int) -> Failure:
        """Returns the failure of this rank, which stops because another one failed.

        Args:
            culprit: the rank that failed first.
        """
        return cls(culprit, f"this rank has given up, because rank {culprit} failed")

    @classmethod
    def from_report(cls, source: int, notice: Notice) -> Failure:
        """Returns the failure that another rank reported.

        Args:
            source: the rank that sent the notice.
            notice: a notice of kind FAILED.
        """
        became = "left the group" if notice.has_left else "failed"
        return cls(
            notice.rank, f"rank {source} reports that rank {notice.rank} {became}", notice.has_left
        )

    @classmethod
    def from_notice(cls, source: int, notice: Notice, rank: int) -> Failure:
        """Returns why a wait of `rank` for `source` fails after a notice.

        A failure with `has_left` does not end waits for other ranks: at the end of a job, ranks leave
        one after another, while the remaining ranks may still exchange messages.

        Args:
            source: the rank that sent the notice.
            notice: a notice of kind LEFT or FAILED.
            rank: the rank that waits.
        """
        # A rank that others report as failed knows that it is alive.
        if notice.kind is NoticeKind.LEFT or notice.rank == rank:
            return cls.left(source)
        return cls.from_report(source, notice)

    def notice(self) -> Notice:
        """Returns the notice that reports this failure to the other ranks."""
        return Notice(NoticeKind.FAILED, self.culprit, has_left=self.has_left)


@dataclass(slots=True)
class Inquiry:
    """Finds the rank that causes a wait to time out, by querying all ranks.

    Args:
        rank: this rank.
        deadline_seconds: deadline of each wait.
        round: number of the last query.
    """

    rank: int
    deadline_seconds: float
    round: int = 0
    _queried_at: float = 0.0
    _answers: dict[int, int] = field(default_factory=dict)

    def is_due(self, limit: float, now: float) -> bool:
        """Whether to query all ranks now, for a wait that ends at `limit`.

        There may be many waits with similar limits; one query is sent for all of them.

        Args:
            limit: end of the wait, by `time.monotonic`.
            now: current time, by `time.monotonic`.
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
        """Records an answer: its sender is alive, and waits for the rank in the answer.

        Args:
            source: the rank that answered.
            answer: a notice of kind ANSWER.
        """
        # An answer to the previous round is recent enough.
        if answer.round >= self.round - 1:
            self._answers[source] = answer.rank

    def verdict(self, peer: int, asked: Sequence[int] = ()) -> Failure:
        """Returns the root cause of a wait for `peer`: the end of the chain of waiting ranks.

        A rank reports only one of the ranks that it waits for. If the chain ends at a rank that is
        alive, the root cause is a rank that did not answer, if there is one.

        Args:
            peer: the rank that this rank waits for.
            asked: the ranks that were queried.
        """
        culprit, seen = peer, {self.rank}
        while culprit in self._answers and culprit not in seen:
            seen.add(culprit)
            if self._answers[culprit] in (NO_RANK, *seen):
                silent = [rank for rank in asked if rank not in self._answers]
                culprit = silent[0] if silent else culprit
                break
            culprit = self._answers[culprit]
        found = f"no message arrived within {self.deadline_seconds:g} s"
        if culprit != peer:
            found += f", because it waits in turn for rank {culprit}"
        elif self._answers and culprit not in self._answers:
            found += ", and it does not answer"
        return Failure(culprit, found)
