"""The split of a file of ratings that `recbole` trains both sides on."""

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
"""Ratings below are no interaction."""
MIN_COUNT = 5
"""Interactions of a user and of an item, at least."""
DIM = 64
BATCH_SIZE = 256
"""Of the sequence models."""
TOP_K = 10
PARTS = {"test": (2, 0), "valid": (2, 1), "refit": (1, 0)}
"""Name of a split → the places from the end of a user's last row of training, and of the row that is
ranked. `refit` trains on the validation, too, as one does when the parameters are chosen."""

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Interactions in the order of users, and of time within a user: the last is the test, the one
    before it the validation."""

    users: Ids
    items: Ids

    @property
    def place_from_end(self) -> Ids:
        """0 for the last interaction of a user, ``(n,)``."""
        ends = np.searchsorted(self.users, self.users, side="right")
        return ends - 1 - np.arange(len(self.users))

    @property
    def is_train(self) -> npt.NDArray[np.bool_]:
        """Neither test nor validation, ``(n,)``."""
        return self.of_part("test")[0]

    def of_part(self, part: str) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which rows are trained on and which are ranked in one of `PARTS`, ``(n,)`` each."""
        last, ranked = PARTS[part]
        return self.place_from_end >= last, self.place_from_end == ranked

    def by_user(self) -> list[Ids]:
        """Rows of each user, in order of time."""
        begins = np.flatnonzero(np.diff(self.users)) + 1
        return np.split(np.arange(len(self.users)), begins)

    @classmethod
    def load(cls, folder: Path) -> Split:
        """The one that `prepare` wrote."""
        arrays = np.load(folder / "split.npz")
        return cls(arrays["users"], arrays["items"])


def prepare(ratings: Path, folder: Path, *, length: int) -> Split:
    """Reads a `ratings.csv` of MovieLens; writes what each side reads.

    ``ratings/ratings.inter`` is RecBole's. ``test.parquet`` and the others of `PARTS` are ours: the rows
    of training and those that are ranked, each with the `length` items before.
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
    # Places stand for times, as many of which are equal.
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
    """Rows of training, and as the test those that are ranked."""
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
