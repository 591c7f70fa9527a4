"""Native admission filters of a table, and their decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import _native
from sparring.contracts.tables.admission import Admission, Bloom, Frequency, Probability
from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from sparring.contracts.storage.results import Keys
    from sparring.contracts.tables.table import TableConfig

__all__ = ["Decision", "decide_unseen", "make_filter", "make_native_filter"]


def make_filter(admission: Admission | None, table: TableConfig) -> Any | None:
    """Creates the empty native filter of a table; returns None if all ids are admitted."""
    return None if admission is None else make_native_filter(admission, table)


def make_native_filter(admission: Admission, table: TableConfig) -> Any:
    """Creates the empty native filter of a table.

    Raises:
        InvalidArgumentError: `admission` is of an unknown class.
    """
    make = _native.AdmissionFilter
    if isinstance(admission, Frequency):
        return make.frequency(admission.k, admission.memory_bytes)
    if isinstance(admission, Probability):
        return make.probability(admission.p, table.seed, table.name)
    if isinstance(admission, Bloom):
        return make.bloom(
            admission.k,
            admission.false_positive_rate,
            *admission.size,
            table.seed,
            table.name,
        )
    raise InvalidArgumentError(
        f"admission of table {table.name!r}: must be Frequency, Probability or Bloom, found "
        f"{type(admission).__name__}; pass one of these, or None"
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """Decision of a filter about the keys of a step. It is counted only by `record`."""

    is_kept: npt.NDArray[np.bool_]
    """``(n,)``: keys that have a row or are admitted, so their gradients are applied."""
    admission_filter: Any
    unseen: Keys
    """``(m,)``: keys without a row."""
    is_admitted: npt.NDArray[np.bool_]
    """``(m,)``: whether each key of `unseen` is admitted."""

    @property
    def num_rejected(self) -> int:
        """Number of keys that were not admitted."""
        return len(self.is_admitted) - int(np.count_nonzero(self.is_admitted))

    def record(self, *, in_order: bool = False) -> None:
        """Counts the keys. Called after the step was applied.

        Args:
            in_order: whether to count in ascending order of keys. It is required if the filters of
                several ranks must stay equal. A full filter removes counts depending on the order
                of keys, and this order differs between ranks.
        """
        unseen, is_admitted = self.unseen, self.is_admitted
        if in_order:
            order = np.argsort(unseen)
            unseen, is_admitted = unseen[order], is_admitted[order]
        self.admission_filter.record(unseen, is_admitted)


def decide_unseen(
    admission_filter: Any, keys: Keys, found: npt.NDArray[np.bool_], step: int
) -> Decision:
    """Decides which keys without a row are admitted.

    Args:
        admission_filter: a filter created by `make_filter`.
        keys: ``(n,)`` unique keys.
        found: ``(n,)``: whether each key has a row.
        step: step number, the same on all ranks.
    """
    unseen = keys[~found]
    is_admitted: npt.NDArray[np.bool_] = admission_filter.decide(unseen, step)
    is_kept = found.copy()
    is_kept[~found] = is_admitted
    return Decision(is_kept, admission_filter, unseen, is_admitted)
