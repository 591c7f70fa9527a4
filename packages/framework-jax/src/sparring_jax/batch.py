"""A batch that was looked up: rows, the argument of a jitted step, and the places of ids among them.

    rows     table   → (u, dim), zeros from the number of keys on       differentiate by these
    places   feature → the row of each id, and the bag                  integers, no gradients

Both are pytrees of padded arrays; see `padded_sizes`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = ["Batch", "Positions", "embeddings", "pad_weights", "pool"]

Rows = Mapping[str, jax.Array]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inverse", "bags", "lengths"],
    meta_fields=["table"],
)
@dataclass(frozen=True)
class Positions:
    """Where the ids of a feature are among the rows of its table."""

    table: str
    inverse: Any
    """The row of each id, int32: of the shape of the ids; or padded, ``(n,)``, where there are bags."""
    bags: Any = None
    """``(n,)`` int32: the bag of each id, and the number of bags for what pads."""
    lengths: Any = None
    """``(b,)`` int32: ids of each bag."""


@dataclass(frozen=True)
class Batch:
    """Result of `Tables.lookup`."""

    rows: Mapping[str, jax.Array]
    """Table → ``(u, dim)``, padded by zeros."""
    positions: Mapping[str, Positions]
    """By feature."""
    keys: Mapping[str, npt.NDArray[np.int64]]
    """Table → ``(number of keys,)``: those of the rows."""
    shadow_ids: Mapping[str, int | None]
    """Table → under what the engine takes the gradient; None: it takes none."""
    accumulated: list[weakref.ref[jax.Array]] = field(
        default_factory=list, repr=False, compare=False
    )
    """Gradients that were handed in and still exist."""

    def check_is_new(self, table: str, gradient: Any) -> None:
        """Rejects a gradient that was handed in before.

        Raises:
            InvalidArgumentError: it was.
        """
        if any(each() is gradient for each in self.accumulated):
            raise InvalidArgumentError(
                f"accumulate: this gradient of table {table!r} was handed in before, and would count "
                "twice; after accumulate(batch, gradients) call step() without arguments",
                table=table,
            )

    def note_gradient(self, gradient: Any) -> None:
        """Remembers a gradient that was handed in."""
        # An array of JAX never changes; a buffer of NumPy may contain a new gradient.
        if isinstance(gradient, jax.Array):
            self.accumulated.append(weakref.ref(gradient))


def embeddings(rows: Rows, positions: Positions) -> jax.Array:
    """One embedding for each id: the shape of the ids, then ``dim``. Inside `jax.jit` or outside.

    Raises:
        InvalidArgumentError: the ids were given in bags.
    """
    if positions.bags is not None:
        raise InvalidArgumentError(
            f"embeddings: a feature of table {positions.table!r} has bags, whose ids are padded; "
            f"use pooled"
        )
    return rows[positions.table][positions.inverse]


def pool(
    rows: Rows, positions: Positions, mode: str = "sum", weights: jax.Array | None = None
) -> jax.Array:
    """One embedding for each bag ``(b, dim)``; that of an empty bag is zeros.

    Bags are those of a feature that was given as ``(ids, lengths)``; or the lines of ids ``(b, length)``.

    Args:
        rows: of a batch.
        places: of a feature.
        mode: ``sum`` or ``mean``.
        weights: one for each id, by which its embedding is multiplied; for bags with lengths ``(n,)``,
            padded by `pad_weights`. With ``mean`` the divisor stays the number of ids.

    Raises:
        InvalidArgumentError: another mode, or weights of another shape.
    """
    if mode not in ("sum", "mean"):
        raise InvalidArgumentError(f"pooled: mode must be 'sum' or 'mean', found {mode!r}")
    found = rows[positions.table][positions.inverse]
    if weights is not None:
        if weights.shape != positions.inverse.shape:
            raise InvalidArgumentError(
                f"pooled: weights have shape {weights.shape}, and the ids of table {positions.table!r} "
                f"{positions.inverse.shape}; give one for each id, those of bags by pad_weights"
            )
        found = found * weights[..., None]
    if positions.bags is None:
        sums, divisor = found.sum(-2), max(positions.inverse.shape[-1], 1)
        return sums / divisor if mode == "mean" else sums
    # Bags behind the last one, which is where padding points, are dropped.
    sums = jax.ops.segment_sum(
        found, positions.bags, num_segments=positions.lengths.shape[0], indices_are_sorted=True
    )
    if mode == "sum":
        return sums
    return sums / jnp.maximum(positions.lengths, 1).astype(sums.dtype)[:, None]


def pad_weights(weights: npt.ArrayLike, positions: Positions) -> npt.NDArray[Any]:
    """Weights of the ids of bags, for `pooled`: as long as the padded ids, so that no other
    number of ids is compiled for.

    Args:
        weights: ``(number of ids,)``.
        places: of the feature.

    Raises:
        InvalidArgumentError: there are more or fewer than ids.
    """
    given = np.asarray(weights)
    num_ids = int(np.sum(positions.lengths)) if positions.lengths is not None else -1
    if given.shape != (num_ids,):
        raise InvalidArgumentError(
            f"pad_weights: weights have shape {given.shape}, and the feature of table "
            f"{positions.table!r} has {'no bags' if num_ids < 0 else f'{num_ids} ids'}"
        )
    padded = np.zeros(positions.inverse.shape, given.dtype)
    padded[:num_ids] = given
    return padded
