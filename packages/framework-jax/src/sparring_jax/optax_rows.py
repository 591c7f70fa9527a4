"""Optimizer state of optax, stored in rows after the embedding.

    row    embedding        first leaf       second leaf
           0 … dim          dim … 2·dim      2·dim … 3·dim
           parameters       mu               nu

`OptaxRows` runs the optimizer on generated rows to find its state: leaves with the shape of the
parameters are stored in rows, ``count`` is the step number, and other floats are stored once per
table.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from sparring.errors import UnsupportedError
from sparring_jax.padded_sizes import PaddedSizes

__all__ = ["OptaxRows"]

Rows = npt.NDArray[Any]

_ROWS = 6
_SCALES = (1.0, 1e4, 1e-2)
"""Scales of the gradients of the trial steps. They differ so much that a limit or a norm takes
effect at one of them."""


class OptaxRows:
    """Applies an optax optimizer to rows of one dim and dtype.

    Args:
        native: the optimizer.
        dim: number of elements of an embedding.
        dtype: dtype that the table computes in.
        name: name of the state in snapshots. By default, `state_method` is derived from the state.

    Raises:
        UnsupportedError: the state cannot be split into rows, or rows influence each other. The message
            contains the reason.
    """

    def __init__(
        self, native: optax.GradientTransformation, dim: int, dtype: str, name: str | None = None
    ) -> None:
        self._native, self._dim, self._dtype = native, dim, dtype
        self._sizes = PaddedSizes()
        try:
            leaves, self._structure = self._leaves(jnp.zeros((_ROWS, dim), dtype))
            other = dict(self._leaves(jnp.ones((_ROWS + 1, dim), dtype))[0])
        except Exception as error:
            raise make_unsupported_error(
                f"it cannot create its state for an array: {type(error).__name__}: {error}"
            ) from error
        if any(isinstance(each, optax.ApplyEvery) for each in _states(native)):
            raise make_unsupported_error(
                "apply_every keeps gradients for later steps, in which their rows may have none; call "
                "Tables.accumulate with the gradients of several batches before a step"
            )
        self._row_leaves, self._counts, self._scalars = [], [], []
        initial = []
        for number, (path, leaf) in enumerate(leaves):
            if leaf.shape == (_ROWS, dim) and other[path].shape == (_ROWS + 1, dim):
                values = np.unique(np.concatenate([np.ravel(leaf), np.ravel(other[path])]))
                if len(values) != 1:
                    raise make_unsupported_error(
                        f"its state {path} of a new row is not a single number"
                    )
                self._row_leaves.append(number)
                initial.append(float(values[0]))
            elif (
                not leaf.shape
                and path.endswith("count")
                and jnp.issubdtype(leaf.dtype, jnp.integer)
            ):
                self._counts.append(number)
            elif not leaf.shape and jnp.issubdtype(leaf.dtype, jnp.floating):
                self._scalars.append(number)
            else:
                raise make_unsupported_error(
                    f"its state {path} is {leaf.dtype} {leaf.shape} for {_ROWS} rows of {dim}"
                )
        self._dtypes = [leaf.dtype for _, leaf in leaves]
        self._initial = initial
        self.fresh_scalars = [leaves[number][1] for number in self._scalars]
        """State of the table as a whole before its first step."""
        self._step = jax.jit(self._apply_step)
        self.why_coupled = self._check_independence()
        """Reason why the columns of a row must be updated together; empty if they are independent."""
        self.state_method = name or self._explain_paths(
            [leaves[each][0] for each in self._row_leaves]
        )
        """Name of the state in snapshots."""

    def initial_row(self, dim: int) -> Rows:
        """Returns the state of a new row.

        Args:
            dim: the dim of the table, even if this object updates only a block of its columns.
        """
        return np.repeat(np.array(self._initial, self._dtype), dim)

    def step(
        self, rows: Rows, gradients: Rows, step: int, scalars: list[Any]
    ) -> tuple[Rows, list[Any]]:
        """Applies one step and returns the new rows ``(u, width)`` and the table's scalars.

        Args:
            rows: embeddings followed by state.
            gradients: ``(u, dim)``.
            step: number of steps before this one.
            scalars: state of the table as a whole.
        """
        size = self._sizes.of("rows", len(rows))
        padded = np.zeros((2, size, rows.shape[1]), rows.dtype)
        padded[0, : len(rows)], padded[1, : len(rows), : self._dim] = rows, gradients
        after, scalars = self._step(padded[0], padded[1, :, : self._dim], np.int32(step), scalars)
        return np.asarray(after)[: len(rows)], scalars

    def _apply_step(self, rows: Any, gradients: Any, step: Any, scalars: Any) -> tuple[Any, Any]:
        parts = jnp.split(rows, 1 + len(self._row_leaves), axis=1)
        leaves: list[Any] = [None] * len(self._dtypes)
        for number, part in zip(self._row_leaves, parts[1:], strict=True):
            leaves[number] = part.astype(self._dtypes[number])
        for number in self._counts:
            leaves[number] = step.astype(self._dtypes[number])
        for number, scalar in zip(self._scalars, scalars, strict=True):
            leaves[number] = scalar
        state = jax.tree.unflatten(self._structure, leaves)
        updates, state = self._native.update(gradients, state, parts[0])
        after = jax.tree.leaves(state)
        changed = [optax.apply_updates(parts[0], updates)]
        changed += [after[number].astype(rows.dtype) for number in self._row_leaves]
        return jnp.concatenate(changed, axis=1), [after[number] for number in self._scalars]

    def _leaves(self, parameters: Any) -> tuple[list[tuple[str, Any]], Any]:
        found, structure = jax.tree_util.tree_flatten_with_path(self._native.init(parameters))
        return [(jax.tree_util.keystr(path), jnp.asarray(leaf)) for path, leaf in found], structure

    def _new_rows(self, embeddings: Rows) -> Rows:
        state = np.tile(self.initial_row(self._dim), (len(embeddings), 1))
        return np.concatenate([embeddings, state], axis=1)

    def _check_independence(self) -> str:
        """Checks that updating rows together or separately gives the same result."""
        generator = np.random.default_rng(1)
        shape = (_ROWS, self._dim)
        start = generator.normal(size=shape).astype(self._dtype)
        gradients = [
            (scale * generator.normal(size=shape)).astype(self._dtype) for scale in _SCALES
        ]

        def stepped(start: Rows, gradients: list[Rows]) -> list[Rows]:
            rows, scalars, seen = self._new_rows(start), self.fresh_scalars, []
            for number, gradient in enumerate(gradients):
                rows, scalars = self.step(rows, gradient, number, scalars)
                seen.append(rows)
            return seen

        others, of_others = start.copy(), [each.copy() for each in gradients]
        others[:, 0] += 1
        for each in of_others:
            each[:, 0] *= -3
        try:
            together = stepped(start, gradients)
            halves = [
                stepped(start[half], [each[half] for each in gradients])
                for half in (slice(2), slice(2, _ROWS))
            ]
            apart = [np.concatenate(parts) for parts in zip(*halves, strict=True)]
            changed = stepped(others, of_others)
        except Exception as error:
            reason = f"a trial step over rows failed with {type(error).__name__}: {error}"
            raise make_unsupported_error(reason) from error
        if not all(map(_is_finite, together)):
            raise make_unsupported_error("a trial step over rows returned NaN or infinity")
        if not all(map(_is_close, together, apart)):
            raise make_unsupported_error(
                "rows that are updated together change differently from rows updated separately, for "
                "example because of a norm over all of them"
            )
        mine = [each[:, 1 : self._dim] for each in together]
        if not all(map(_is_close, mine, [each[:, 1 : self._dim] for each in changed])):
            return "the update of an element of a row depends on other elements of the row"
        return ""

    def _explain_paths(self, paths: list[str]) -> str:
        """Returns the name that PyTorch and Keras have for this state, or a name derived from its
        leaves."""
        fields = [path.rpartition(".")[2].strip("[]'") for path in paths]
        seen = self._find_initial_state()
        gradients = [np.float64(1), np.float64(3), np.float64(2)]
        if fields == ["sum_of_squares"]:
            sums = np.cumsum(np.square(gradients)) + self._initial[0]
            if np.allclose(seen[:, 0], sums, rtol=1e-5):
                return "Adagrad"
        if len(fields) == 2 and self._initial == [0.0, 0.0]:
            first, second = (
                _averages(powers, 1 - seen[0, column])
                for column, powers in enumerate((gradients, np.square(gradients)))
            )
            if np.allclose(seen, np.stack([first, second], axis=1), rtol=1e-4):
                return "Adam"
        return f"optax.{'.'.join(fields)}" if fields else "optax"

    def _find_initial_state(self) -> npt.NDArray[np.float64]:
        """Returns the state of a row of zeros after the gradients 1, 3, 2: ``(3, leaves)``."""
        rows, scalars, seen = (
            self._new_rows(np.zeros((1, self._dim), self._dtype)),
            self.fresh_scalars,
            [],
        )
        for number, gradient in enumerate((1, 3, 2)):
            rows[:, : self._dim] = 0
            given = np.full((1, self._dim), gradient, self._dtype)
            after, scalars = self.step(rows, given, number, scalars)
            rows = after.copy()
            seen.append(rows[0, self._dim :: self._dim].astype(np.float64))
        return np.array(seen)


def _states(native: optax.GradientTransformation) -> list[Any]:
    """Returns the states of the transformations that an optimizer consists of."""
    state = native.init(jnp.zeros((1, 1)))
    return list(jax.tree.leaves(state, is_leaf=lambda each: isinstance(each, optax.ApplyEvery)))


def _averages(values: Any, beta: float) -> npt.NDArray[np.float64]:
    """Returns the exponential moving averages, which start at 0."""
    found, mean = [], 0.0
    for value in values:
        mean = beta * mean + (1 - beta) * value
        found.append(mean)
    return np.array(found)


def _is_finite(rows: Rows) -> bool:
    return bool(np.isfinite(rows).all())


def _is_close(ours: Rows, theirs: Rows) -> bool:
    return np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def make_unsupported_error(reason: str) -> UnsupportedError:
    """Creates the error for an optimizer that cannot update rows."""
    return UnsupportedError(
        f"this optax optimizer cannot update rows of a table: {reason}; choose an elementwise "
        "optimizer, such as sgd, adagrad, adam, adamw, rmsprop, adadelta or lion, without global norms",
        reason=reason,
    )
