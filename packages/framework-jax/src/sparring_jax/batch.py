"""The result of a lookup: rows, an argument of a jitted step, and the positions of ids in them.

    rows        table   → (u, dim), padded with zeros      differentiate with respect to these
    positions   feature → row and bag of each id           integers, no gradients

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
    """Maps the ids of one feature to rows of its table."""

    table: str
    inverse: Any
    """Row of each id, int32: the shape of the ids; for bags ``(n,)``, padded."""
    bags: Any = None
    """``(n,)`` int32, the bag of each id. Padding has the number of bags. None without bags."""
    lengths: Any = None
    """``(b,)`` int32, the number of ids per bag. None without bags."""


@dataclass(frozen=True)
class Batch:
    """Result of `Tables.lookup`.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables
        >>> batch = Tables([TableConfig("items", dim=4)]).lookup({"items": np.array([7, 8, 7])})
        >>> batch.positions["items"].inverse.tolist()
        [0, 1, 0]
    """

    rows: Mapping[str, jax.Array]
    """Table → ``(u, dim)``, padded with zeros."""
    positions: Mapping[str, Positions]
    """Feature → the rows of its ids."""
    keys: Mapping[str, npt.NDArray[np.int64]]
    """Table → ``(number of keys,)``, the key of each row."""
    shadow_ids: Mapping[str, int | None]
    """Table → the engine's number for the gradient; None if the batch takes no gradients."""
    accumulated: list[weakref.ref[jax.Array]] = field(
        default_factory=list, repr=False, compare=False
    )
    """Gradients that were accumulated and still exist."""

    def check_is_new(self, table: str, gradient: Any) -> None:
        """Rejects a gradient that was already accumulated.

        Args:
            table: table of the gradient, for the message.
            gradient: gradient with respect to the rows of the table.

        Raises:
            InvalidArgumentError: the gradient was already accumulated.
        """
        if any(each() is gradient for each in self.accumulated):
            raise InvalidArgumentError(
                f"accumulate: this gradient of table {table!r} was already accumulated and would count "
                "twice; after accumulate(batch, gradients), call step() without arguments",
                table=table,
            )

    def note_gradient(self, gradient: Any) -> None:
        """Remembers a gradient that was accumulated.

        Args:
            gradient: gradient with respect to the rows of a table.
        """
        # JAX arrays are immutable, but a NumPy buffer may be reused for a new gradient.
        if isinstance(gradient, jax.Array):
            self.accumulated.append(weakref.ref(gradient))


def embeddings(rows: Rows, positions: Positions) -> jax.Array:
    """Returns one embedding per id, in the shape of the ids followed by ``dim``.

    It can be called inside and outside `jax.jit`.

    Args:
        rows: `Batch.rows`, or the argument of a jitted step that receives them.
        positions: an element of `Batch.positions`.

    Raises:
        InvalidArgumentError: the ids were given as bags.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables, embeddings
        >>> tables = Tables([TableConfig("items", dim=4)])
        >>> batch = tables.lookup({"items": np.array([[7, 8], [8, 9]])})
        >>> embeddings(batch.rows, batch.positions["items"]).shape
        (2, 2, 4)
    """
    if positions.bags is not None:
        raise InvalidArgumentError(
            f"embeddings: a feature of table {positions.table!r} has bags with padded ids; use pool"
        )
    return rows[positions.table][positions.inverse]


def pool(
    rows: Rows, positions: Positions, mode: str = "sum", weights: jax.Array | None = None
) -> jax.Array:
    """Returns one embedding per bag, ``(b, dim)``. Empty bags are zero.

    A bag is one element of ``lengths`` if the ids were given as ``(ids, lengths)``, or one row of ids
    ``(b, length)``.

    Args:
        rows: `Batch.rows`.
        positions: an element of `Batch.positions`.
        mode: ``sum`` or ``mean``.
        weights: one weight per id, multiplied with its embedding. For bags with lengths ``(n,)``, padded
            by `pad_weights`. A ``mean`` divides by the number of ids, not by the sum of the weights.

    Raises:
        InvalidArgumentError: `mode` is not supported, or `weights` does not have the shape of the ids.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables, pool
        >>> tables = Tables([TableConfig("items", dim=4)])
        >>> batch = tables.lookup({"items": (np.array([7, 8, 8]), np.array([2, 1]))})
        >>> pool(batch.rows, batch.positions["items"], "mean").shape
        (2, 4)
    """
    if mode not in ("sum", "mean"):
        raise InvalidArgumentError(f"pool: mode must be 'sum' or 'mean', found {mode!r}")
    found = rows[positions.table][positions.inverse]
    if weights is not None:
        if weights.shape != positions.inverse.shape:
            raise InvalidArgumentError(
                f"pool: weights have shape {weights.shape}, expected the shape of the ids of table "
                f"{positions.table!r}, {positions.inverse.shape}; pad weights of bags with pad_weights"
            )
        found = found * weights[..., None]
    if positions.bags is None:
        sums, divisor = found.sum(-2), max(positions.inverse.shape[-1], 1)
        return sums / divisor if mode == "mean" else sums
    # Padding points behind the last bag and is dropped.
    sums = jax.ops.segment_sum(
        found, positions.bags, num_segments=positions.lengths.shape[0], indices_are_sorted=True
    )
    if mode == "sum":
        return sums
    return sums / jnp.maximum(positions.lengths, 1).astype(sums.dtype)[:, None]


def pad_weights(weights: npt.ArrayLike, positions: Positions) -> npt.NDArray[Any]:
    """Pads the weights of ids in bags to the length of the padded ids, for `pool`.

    The padded length changes rarely, so a jitted step is not compiled again for each number of ids.

    Args:
        weights: ``(number of ids,)``.
        positions: an element of `Batch.positions`.

    Raises:
        InvalidArgumentError: the number of weights is not the number of ids.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables, pad_weights, pool
        >>> tables = Tables([TableConfig("items", dim=4)])
        >>> batch = tables.lookup({"items": (np.array([7, 8, 8]), np.array([2, 1]))})
        >>> positions = batch.positions["items"]
        >>> pool(batch.rows, positions, weights=pad_weights([1.0, 0.5, 2.0], positions)).shape
        (2, 4)
    """
    given = np.asarray(weights)
    num_ids = int(np.sum(positions.lengths)) if positions.lengths is not None else -1
    if given.shape != (num_ids,):
        raise InvalidArgumentError(
            f"pad_weights: weights have shape {given.shape}, but the feature of table "
            f"{positions.table!r} has {'no bags' if num_ids < 0 else f'{num_ids} ids'}; give "
            "one weight per id"
        )
    padded = np.zeros(positions.inverse.shape, given.dtype)
    padded[:num_ids] = given
    return padded
