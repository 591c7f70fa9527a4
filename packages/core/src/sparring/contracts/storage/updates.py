"""Contract of update methods: how gradients change the rows of a table."""

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
    """The rows of one table that received gradients in a step; a method writes into these arrays.

    The class is not frozen so that ``rows.embeddings -= …`` is possible. Assigning another array to
    a field is an error, because that array would never be read.
    """

    keys: Keys
    """``(n,)`` unique."""
    rows: Rows
    """``(n, dim + state_width)`` of the computing dtype, which all arrays below have: float64 for
    float64 tables, otherwise float32. `embeddings` and `state` are views of this array."""
    embeddings: Rows
    """``(n, dim)``. Embeddings of 16-bit tables are rounded stochastically after the update."""
    state: Rows
    """``(n, state_width)``; rows that are new have the initial state."""
    gradients: Rows
    """``(n, dim)``: summed over the step and clipped. The method may overwrite them."""
    step: int
    """Number of steps in which the table received gradients, including this one. Rows without a
    gradient do not change in a step, like with `torch.optim.SparseAdam`."""


class UpdateMethod(ABC):
    """Rule that applies gradients to the rows of a table.

    The new value of a row may depend on the row, its gradient, the hyper-parameters and the step
    number, but not on other rows: a call may receive any subset of the rows, in any order.

    Examples:
        >>> from sparring.contracts import HyperParameters, UpdateMethod
        >>> class SignSgd(UpdateMethod):
        ...     name, hyperparameters, couples_columns = "sign_sgd", HyperParameters, False
        ...     def state_width(self, dim):
        ...         return 0
        ...     def update(self, rows, hyper):
        ...         rows.embeddings -= hyper.lr * np.sign(rows.gradients)
        >>> SignSgd().initial_state(16, HyperParameters(lr=0.1), "float32").shape
        (0,)
    """

    name: str
    """Name in configurations."""
    hyperparameters: type[HyperParameters]
    """Model of the hyper-parameters."""
    couples_columns: bool = True
    """Whether the update of an element depends on other elements of its row, for example on their
    norm. If it does not, and the state consists of arrays of `dim` elements, blocks of columns may be
    updated separately."""

    @abstractmethod
    def state_width(self, dim: int) -> int:
        """Returns the number of elements of optimizer state per row.

        Args:
            dim: number of elements of an embedding.
        """

    def initial_state(
        self, dim: int, hyper: HyperParameters, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Returns the state of a new row, ``(state_width,)``. By default it is zero.

        Args:
            dim: number of elements of an embedding.
            hyper: hyper-parameters of the table.
            dtype: computing dtype of the table: float64 or float32.
        """
        return np.zeros(self.state_width(dim), dtype)

    @abstractmethod
    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        """Changes rows in place. Gradients are finite.

        Args:
            rows: the rows that received gradients. The method writes into `rows.embeddings` and
                `rows.state`.
            hyper: hyper-parameters of the table.
        """


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """The update method of one table in one step, with its hyper-parameters."""

    method: UpdateMethod
    hyper: HyperParameters
    step: int
    """See `UpdateRows.step`."""

    @property
    def why_coupled(self) -> str:
        """Reason why blocks of columns cannot be updated separately; empty if they can."""
        return why_coupled(self.method, self.hyper)


def why_coupled(method: UpdateMethod, hyper: HyperParameters) -> str:
    """Returns `MethodChoice.why_coupled` for a method and its hyper-parameters."""
    if method.couples_columns:
        return "its update of an element depends on other elements of the row"
    if hyper.clip_norm > 0:
        return f"clip_norm={hyper.clip_norm} applies to whole rows (clip_value applies to elements)"
    return ""
