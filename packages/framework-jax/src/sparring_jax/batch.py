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

__all__ = ["Batch", "Places", "embeddings", "pad_weights", "pooled"]

Rows = Mapping[str, jax.Array]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["inverse", "bags", "lengths"],
    meta_fields=["table"],
)
@dataclass(frozen=True)
class Places:
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
    places: Mapping[str, Places]
    """By feature."""
    keys: Mapping[str, npt.NDArray[np.int64]]
    """Table → ``(number of keys,)``: those of the rows."""
    shadow_ids: Mapping[str, int | None]
    """Table → under what the engine takes the gradient; None: it takes none."""
    handed_in: list[weakref.ref[jax.Array]] = field(default_factory=list, repr=False, compare=False)
    """Gradients that were handed in and still exist."""

    def check_is_new(self, table: str, gradient: Any) -> None:
        """Rejects a gradient that was handed in before.

        Raises:
            InvalidArgumentError: it was.
        """
        if any(each() is gradient for each in self.handed_in):
            raise InvalidArgumentError(
                f"accumulate: this gradient of table {table!r} was handed in before, and would count "
                "twice; after accumulate(batch, gradients) call step() without arguments",
                table=table,
            )

    def note_gradient(self, gradient: Any) -> None:
        """Remembers a gradient that was handed in."""
        # An array of JAX never changes; a buffer of NumPy may contain a new gradient.
        if isinstance(gradient, jax.Array):
            self.handed_in.append(weakref.ref(gradient))


def embeddings(rows: Rows, places: Places) -> jax.Array:
    """One embedding for each id: the shape of the ids, then ``dim``. Inside `jax.jit` or outside.

    Raises:
        InvalidArgumentError: the ids were given in bags.
    """
    if places.bags is not None:
        raise InvalidArgumentError(
            f"embeddings: a feature of table {places.table!r} has bags, whose ids are padded; use pooled"
        )
    return rows[places.table][places.inverse]


def pooled(
    rows: Rows, places: Places, mode: str = "sum", weights: jax.Array | None = None
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
    found = rows[places.table][places.inverse]
    if weights is not None:
        if weights.shape != places.inverse.shape:
            raise InvalidArgumentError(
                f"pooled: weights have shape {weights.shape}, and the ids of table {places.table!r} "
                f"{places.inverse.shape}; give one for each id, those of bags by pad_weights"
            )
        found = found * weights[..., None]
    if places.bags is None:
        sums, divisor = found.sum(-2), max(places.inverse.shape[-1], 1)
        return sums / divisor if mode == "mean" else sums
    # Bags behind the last one, which is where padding points, are dropped.
    sums = jax.ops.segment_sum(
        found, places.bags, num_segments=places.lengths.shape[0], indices_are_sorted=True
    )
    if mode == "sum":
        return sums
    return sums / jnp.maximum(places.lengths, 1).astype(sums.dtype)[:, None]


def pad_weights(weights: npt.ArrayLike, places: Places) -> npt.NDArray[Any]:
    """Weights of the ids of bags, for `pooled`: as long as the padded ids, so that no other
    number of ids is compiled for.

    Args:
        weights: ``(number of ids,)``.
        places: of the feature.

    Raises:
        InvalidArgumentError: there are more or fewer than ids.
    """
    given = np.asarray(weights)
    num_ids = int(np.sum(places.lengths)) if places.lengths is not None else -1
    if given.shape != (num_ids,):
        raise InvalidArgumentError(
            f"pad_weights: weights have shape {given.shape}, and the feature of table "
            f"{places.table!r} has {'no bags' if num_ids < 0 else f'{num_ids} ids'}"
        )
    padded = np.zeros(places.inverse.shape, given.dtype)
    padded[:num_ids] = given
    return padded
