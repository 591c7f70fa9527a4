"""Splits a file of ratings for `recbole`; both sides train on the same split."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

__all__ = ["BATCH_SIZE", "DIM", "PARTS", "TOP_K", "Split", "prepare"]

MIN_RATING = 4
"""Lower ratings are ignored."""
MIN_COUNT = 5
"""Minimum number of interactions of a user and of an item."""
DIM = 64
BATCH_SIZE = 256
"""Batch size of the sequence models."""
TOP_K = 10
PARTS = {"test": (2, 0), "valid": (2, 1), "refit": (1, 0)}
"""Name of a split → positions from the end of a user's last training row, and of the row to rank.
`refit` also trains on the validation part, which is usual after hyperparameters are chosen."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Interactions in the order of users, and of time within a user. The last one of a user is the test
    part, the one before it the validation part."""

    users: Ids
    items: Ids

    @property
    def place_from_end(self) -> Ids:
        """Returns ``(n,)`` positions from the end: 0 for the last interaction of a user."""
        ends = np.searchsorted(self.users, self.users, side="right")
        return ends - 1 - np.arange(len(self.users))

    @property
    def is_train(self) -> npt.NDArray[np.bool_]:
        """Returns ``(n,)`` whether each interaction is in neither the test nor the validation part."""
        return self.of_part("test")[0]

    def of_part(self, part: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Returns ``(n,)`` which rows to train on, and which to rank, in one of `PARTS`."""
        last, ranked = PARTS[part]
        return self.place_from_end >= last, self.place_from_end == ranked

    def by_user(self) -> list[Ids]:
        """Returns the rows of each user in the order of time."""
        begins = np.flatnonzero(np.diff(self.users)) + 1
        return np.split(np.arange(len(self.users)), begins)

    @classmethod
    def load(cls, folder: Path) -> Split:
        """Loads a split that `prepare` wrote."""
        arrays = np.load(folder / "split.npz")
        return cls(arrays["users"], arrays["items"])


def prepare(ratings: Path, folder: Path, *, length: int) -> Split:
    """Reads a `ratings.csv` of MovieLens and writes the input of each side.

    ``ratings/ratings.inter`` is for RecBole. ``test.parquet`` and the others of `PARTS` are for sparring:
    the training rows and the rows to rank, each with the preceding `length` items.
    """
    table = csv.read_csv(ratings)
    names = ("userId", "movieId", "rating", "timestamp")
    user, item, rating, when = (table[name].to_numpy() for name in names)
    order = np.lexsort((np.arange(len(user)), when, user))
    order = order[rating[order] >= MIN_RATING]
    users, items = user[order], item[order]
    while True:
        is_kept = _is_frequent(users) & _is_frequent(items)
        if is_kept.all():
            break
        users, items = users[is_kept], items[is_kept]
    split = Split(users, items)
    np.savez(folder / "split.npz", users=users, items=items)
    (folder / "ratings").mkdir()
    rows = enumerate(zip(users.tolist(), items.tolist(), strict=True))
    # Positions are used instead of times, because many times are equal.
    lines = [f"{user}\t{item}\t{place}\n" for place, (user, item) in rows]
    header = "user_id:token\titem_id:token\ttimestamp:float\n"
    (folder / "ratings/ratings.inter").write_text(header + "".join(lines))
    for part in PARTS:
        parquet.write_table(_table(split, part, length), folder / f"{part}.parquet")
    return split


def _is_frequent(ids: Ids) -> npt.NDArray[np.bool_]:
    _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    is_frequent: npt.NDArray[np.bool_] = counts[inverse] >= MIN_COUNT
    return is_frequent


def _table(split: Split, part: str, length: int) -> Any:
    """Returns the training rows, and the rows to rank as the test part."""
    is_train, is_test = split.of_part(part)
    histories = [
        split.items[rows[max(0, at - length) : at] if at else rows[:0]]
        for rows in split.by_user()
        for at in range(len(rows))
    ]
    kept = np.flatnonzero(is_train | is_test)
    return pa.table(
        {
            "user": split.users[kept],
            "item": split.items[kept],
            "history": pa.array([histories[row] for row in kept], pa.list_(pa.int64())),
            "fold": np.where(is_test[kept], "test", "train"),
        }
    )
