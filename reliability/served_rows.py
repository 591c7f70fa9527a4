"""Rows that contain their key and version, so that errors in replies of a service can be detected."""

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
    """Returns the row of each key in the version of `step`."""
    rows = np.empty((len(keys), TABLE.dim), np.float32)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = step, keys, -keys, 0.5
    return rows


def wrong_rows(answer: LookupReply, ids: npt.NDArray[np.int64], steps: Sequence[int] = (1,)) -> str:
    """Returns the first unflagged error in a reply; empty if there is none. All `ids` have rows."""
    rows, status = answer.rows[TABLE.name], answer.status[TABLE.name]
    if not np.isnan(rows[status == RowStatus.FAILED]).all():
        return "rows without a reply are not NaN"
    if not (rows[status == RowStatus.INITIAL] == 0).all():
        return "rows flagged as initial values are not initial values"
    if (status == RowStatus.ABSENT).any() or not answer.found[TABLE.name][status == 0].all():
        return "keys that have a row were not found"
    has_row = (status == RowStatus.FRESH) | (status == RowStatus.STALE)
    given = rows[has_row]
    if len(given) and not np.isin(given[:, 0], steps).all():
        return f"rows of versions {np.unique(given[:, 0]).tolist()}, expected {list(steps)}"
    expected = rows_of(0, ids[has_row])
    if not np.array_equal(given[:, 1:], expected[:, 1:]):
        return "wrong rows without a flag"
    return ""


@dataclass(slots=True)
class Watch:
    """Pulls of one client, which are timed and checked.

    Attributes:
        clock: returns the seconds of the client's deadlines.
        failures: violated promises.
        num_whole: number of replies with all rows.
        num_flagged: number of replies with rows of NaN.
        num_raised: number of pulls that raised an error of replicas.
        longest_share: the longest pull, as a multiple of its deadline.
    """

    clock: Callable[[], float] = time.monotonic
    failures: list[str] = field(default_factory=list)
    num_whole: int = 0
    num_flagged: int = 0
    num_raised: int = 0
    longest_share: float = 0.0

    def pull(self, client: LookupClient, ids: npt.NDArray[np.int64], *, must: str = "") -> bool:
        """Pulls once; returns whether the reply contained all rows.

        Args:
            client: a client whose `config` has the deadline.
            ids: ids that have rows.
            must: why all rows are required; empty if they are not.
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
            self.failures.append(f"an unexpected error, not of replicas: {raised!r}")
            error = raised
        share = (self.clock() - begin) / deadline
        self.longest_share = max(self.longest_share, share)
        if share > 1.1:
            self.failures.append(f"a reply after {share:.2f} deadlines")
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
        """Adds the results of another one."""
        self.failures += other.failures
        self.num_whole += other.num_whole
        self.num_flagged += other.num_flagged
        self.num_raised += other.num_raised
        self.longest_share = max(self.longest_share, other.longest_share)

    def counts(self) -> dict[str, int]:
        """Returns the results as counts."""
        return {
            "pulls with all rows": self.num_whole,
            "pulls with flagged rows": self.num_flagged,
            "pulls that raised": self.num_raised,
            "longest pull, percent of its deadline": round(100 * self.longest_share),
        }
