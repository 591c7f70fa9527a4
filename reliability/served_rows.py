"""Rows that tell their key and version, so that an answer of a service shows what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring.contracts import TableConfig
from sparring.errors import DeadlineError, SparringError
from sparring_serve import LookupClient, LookupReply, ReplicasFailedError, RowStatus

__all__ = ["NUM_KEYS", "TABLE", "Watch", "rows_of", "wrong_rows"]

TABLE = TableConfig("item", 4, initializer="zeros")
NUM_KEYS = 400


def rows_of(step: int, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """The row of each key in the version of `step`."""
    rows = np.empty((len(keys), TABLE.dim), np.float32)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = step, keys, -keys, 0.5
    return rows


def wrong_rows(answer: LookupReply, ids: npt.NDArray[np.int64], steps: Sequence[int] = (1,)) -> str:
    """What an answer has that is neither right nor flagged; empty: nothing. All `ids` have a row."""
    rows, status = answer.rows[TABLE.name], answer.status[TABLE.name]
    if not np.isnan(rows[status == RowStatus.FAILED]).all():
        return "rows that were not answered are not NaN"
    if not (rows[status == RowStatus.INITIAL] == 0).all():
        return "rows flagged as initial values are none"
    if (status == RowStatus.ABSENT).any() or not answer.found[TABLE.name][status == 0].all():
        return "keys that have a row were not found"
    has_row = (status == RowStatus.FRESH) | (status == RowStatus.STALE)
    given = rows[has_row]
    if len(given) and not np.isin(given[:, 0], steps).all():
        return f"rows of versions {np.unique(given[:, 0]).tolist()}, expected {list(steps)}"
    expected = rows_of(0, ids[has_row])
    if not np.array_equal(given[:, 1:], expected[:, 1:]):
        return "wrong rows that are not flagged"
    return ""


@dataclass(slots=True)
class Watch:
    """Pulls of one client, each timed and looked at.

    Attributes:
        clock: seconds, of the client's deadlines.
        failures: what must not happen.
        num_whole: answers with all rows.
        num_flagged: answers with rows of NaN.
        num_raised: pulls that raised an error of replicas.
        longest_share: the longest pull, in deadlines.
    """

    clock: Callable[[], float] = time.monotonic
    failures: list[str] = field(default_factory=list)
    num_whole: int = 0
    num_flagged: int = 0
    num_raised: int = 0
    longest_share: float = 0.0

    def pull(self, client: LookupClient, ids: npt.NDArray[np.int64], *, must: str = "") -> bool:
        """Pulls once; returns whether all rows were answered.

        Args:
            client: whose `config` has the deadline.
            ids: that have a row.
            must: why all rows have to come; empty: they need not.
        """
        deadline = client.config.deadline_seconds
        begin, answer = self.clock(), None
        error: SparringError | None = None
        try:
            answer = client.pull({TABLE.name: ids})
        except (DeadlineError, ReplicasFailedError) as raised:
            self.num_raised += 1
            error = raised
        except SparringError as raised:
            self.failures.append(f"another error than that of replicas: {raised!r}")
            error = raised
        share = (self.clock() - begin) / deadline
        self.longest_share = max(self.longest_share, share)
        if share > 1.1:
            self.failures.append(f"answered after {share:.2f} deadlines")
        is_whole = False
        if answer is not None:
            if wrong := wrong_rows(answer, ids):
                self.failures.append(wrong)
            is_whole = answer.is_complete
            self.num_whole += is_whole
            self.num_flagged += not is_whole
        if must and not is_whole:
            self.failures.append(f"{must}: {error or 'rows are flagged'}")
        return is_whole

    def add(self, other: Watch) -> None:
        """Takes over what another one saw."""
        self.failures += other.failures
        self.num_whole += other.num_whole
        self.num_flagged += other.num_flagged
        self.num_raised += other.num_raised
        self.longest_share = max(self.longest_share, other.longest_share)

    def counts(self) -> dict[str, int]:
        """What was seen, in words."""
        return {
            "pulls with all rows": self.num_whole,
            "pulls with flagged rows": self.num_flagged,
            "pulls that raised": self.num_raised,
            "longest pull, percent of its deadline": round(100 * self.longest_share),
        }
