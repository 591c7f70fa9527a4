"""Update methods: their descriptions, and the rows that they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Keys, Rows
from sparring.contracts.tables.hyperparameters import HyperParameters

__all__ = ["MethodChoice", "UpdateMethod", "UpdateRows", "why_coupled"]


@dataclass(slots=True)
class UpdateRows:
    """The rows of one table that got gradients in a step; a method writes into these arrays.

    Not frozen, so that ``rows.embeddings -= …`` is possible. Another array in place of one of these
    is refused: it would never be read.
    """

    keys: Keys
    """``(n,)`` unique."""
    rows: Rows
    """``(n, dim + state_width)`` of the computing dtype, as all below: float64 for float64 tables,
    else float32. `embeddings` and `state` are views of it."""
    embeddings: Rows
    """``(n, dim)``. Those of 16-bit tables are rounded stochastically afterwards."""
    state: Rows
    """``(n, state_width)``: of new rows, the initial state."""
    gradients: Rows
    """``(n, dim)``: summed over the step, clipped. The method's own to overwrite."""
    step: int
    """The number of this step for the table, from 1. It counts steps in which the table had
    gradients; as under `torch.optim.SparseAdam`, rows without one in a step do not move."""


class UpdateMethod(ABC):
    """How gradients change the rows of a table.

    What it does to a row may depend on the row, its gradient, the hyper-parameters and the number
    of the step, not on other rows: rows come in any order and any division.
    """

    name: str
    """Name in configurations."""
    hyperparameters: type[HyperParameters]
    """The model of its hyper-parameters."""
    couples_columns: bool = True
    """Whether an element of a row moves by others of the row, as by its norm. Where it does not, and
    state is arrays of `dim`, one after the other, blocks of columns may be updated apart."""

    @abstractmethod
    def state_width(self, dim: int) -> int:
        """Elements of state behind an embedding of `dim`."""

    def initial_state(
        self, dim: int, hyper: HyperParameters, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """``(state_width,)``: the state of a new row."""
        return np.zeros(self.state_width(dim), dtype)

    @abstractmethod
    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        """Changes `rows` in place. Gradients are finite."""


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """How one table is updated in one step."""

    method: UpdateMethod
    hyper: HyperParameters
    step: int
    """As `UpdateRows.step`."""

    @property
    def why_coupled(self) -> str:
        """Why blocks of columns cannot be updated apart; empty: they can."""
        return why_coupled(self.method, self.hyper)


def why_coupled(method: UpdateMethod, hyper: HyperParameters) -> str:
    """As `MethodChoice.why_coupled`."""
    if method.couples_columns:
        return "it moves an element of a row by others of the row"
    if hyper.clip_norm > 0:
        return f"clip_norm={hyper.clip_norm} is of whole rows (clip_value goes by elements)"
    return ""
