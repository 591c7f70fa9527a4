"""Admission filters of a table: counts of unseen ids, and their decisions."""

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
    """The native filter of a table, with nothing counted; None where all ids are admitted."""
    return None if admission is None else make_native_filter(admission, table)


def make_native_filter(admission: Admission, table: TableConfig) -> Any:
    """As `make_filter`, where not all ids are admitted."""
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
        f"{type(admission).__name__}"
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """A filter's decision about the keys of a step, not yet counted."""

    is_kept: npt.NDArray[np.bool_]
    """``(n,)``: keys that have a row or are admitted: their gradients are applied."""
    admission_filter: Any
    unseen: Keys
    """``(m,)``: those that have no row."""
    is_admitted: npt.NDArray[np.bool_]
    """``(m,)``"""

    @property
    def num_rejected(self) -> int:
        return len(self.is_admitted) - int(np.count_nonzero(self.is_admitted))

    def record(self, *, in_order: bool = False) -> None:
        """Counts the keys: to be called once the step was applied.

        Args:
            in_order: by ascending keys, for filters of several ranks that must stay alike: a full one
                forgets by the order in which keys come, which is that of its rank's exchange.
        """
        unseen, is_admitted = self.unseen, self.is_admitted
        if in_order:
            order = np.argsort(unseen)
            unseen, is_admitted = unseen[order], is_admitted[order]
        self.admission_filter.record(unseen, is_admitted)


def decide_unseen(
    admission_filter: Any, keys: Keys, found: npt.NDArray[np.bool_], step: int
) -> Decision:
    """Asks about the keys that have no row.

    Args:
        admission_filter: as `make_filter` makes it.
        keys: ``(n,)``
        found: ``(n,)``: which of them have a row.
        step: the number of the step, the same on all ranks.
    """
    unseen = keys[~found]
    is_admitted: npt.NDArray[np.bool_] = admission_filter.decide(unseen, step)
    is_kept = found.copy()
    is_kept[~found] = is_admitted
    return Decision(is_kept, admission_filter, unseen, is_admitted)
