"""`Optimizer`: updates the rows of tables with an optax optimizer or an update method."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optax

from sparring.adapter import resolve_method
from sparring.contracts import UpdateMethod
from sparring.errors import InvalidArgumentError
from sparring_jax.batch import Batch
from sparring_jax.fused_updater import FusedUpdater
from sparring_jax.native_updater import NativeUpdater
from sparring_jax.tables import Tables

__all__ = ["Optimizer"]


class Optimizer:
    """Updates the rows of tables. The caller updates ordinary parameters, as usual in JAX.

    An optax optimizer receives the rows that have gradients as its parameters, with the state that is
    stored in the rows. An update method changes each row in one pass, without a copy.

    Rows without a gradient in a step do not change: Adam is lazy, and weight decay decays only rows that
    were looked up. Schedules count the steps of the container.

    Args:
        tables: the tables to update.
        sparse: an elementwise optax optimizer, or an update method or its name.
        by_table: table → hyper-parameters that override `hyperparameters`. Update methods only.
        name: name of the optax optimizer's state in snapshots. By default ``Adagrad`` or ``Adam``, which
            PyTorch and Keras read, if the state is equal to theirs; otherwise the names of its leaves.
        **hyperparameters: hyper-parameters of an update method; `lr` may be a schedule: step → number.

    Raises:
        InvalidArgumentError: `sparse` does not accept the hyper-parameters, or the rows contain the state
            of another optimizer.
        UnsupportedError: the state of the optax optimizer cannot be split into rows, or its update of a
            row depends on other rows.
        PluginError: there is no update method of this name.

    Examples:
        >>> import jax, numpy, optax
        >>> from sparring import TableConfig
        >>> from sparring_jax import Optimizer, Tables
        >>> tables = Tables([TableConfig("items", dim=4)])
        >>> optimizer = Optimizer(tables, optax.adagrad(0.05))
        >>> batch = tables.lookup({"items": numpy.array([7, 8, 7])})
        >>> gradients = jax.grad(lambda rows: (rows["items"] ** 2).sum())(batch.rows)
        >>> optimizer.step(batch, gradients)
        >>> tables.container.num_rows("items")
        2
    """

    def __init__(
        self,
        tables: Tables,
        sparse: optax.GradientTransformation | UpdateMethod | str,
        *,
        by_table: Mapping[str, Mapping[str, Any]] | None = None,
        name: str | None = None,
        **hyperparameters: Any,
    ) -> None:
        self.tables = tables
        self._num_gradients = tables.container.resources.num_gradients
        """Number of gradients that the container had received at the last step."""
        self._updater: NativeUpdater | FusedUpdater
        if isinstance(sparse, (str, UpdateMethod)):
            if name is not None:
                raise InvalidArgumentError(
                    f"Optimizer: name={name!r} is only supported for optax optimizers; leave it out"
                )
            method = resolve_method(sparse) if isinstance(sparse, str) else sparse
            self._updater = FusedUpdater(tables, method, hyperparameters, by_table or {})
        elif isinstance(sparse, optax.GradientTransformation):
            if by_table or hyperparameters:
                given = ", ".join([*hyperparameters, *(["by_table"] if by_table else [])])
                raise InvalidArgumentError(
                    f"Optimizer: {given} is only supported for update methods; pass hyper-parameters to "
                    "the optax optimizer, for example optax.adam(1e-3)"
                )
            self._updater = NativeUpdater(tables, sparse, name)
        else:
            raise InvalidArgumentError(
                "Optimizer takes an optax optimizer, such as optax.adagrad(0.05), or the name of an "
                f"update method, such as 'rowwise_adagrad'; found {sparse!r}"
            )

    def step(self, batch: Batch | None = None, gradients: Mapping[str, Any] | None = None) -> None:
        """Updates rows with the gradients since the last step. All ranks call it.

        Args:
            batch: passed to `Tables.accumulate` with its gradients first. None if all gradients were
                already accumulated.
            gradients: gradients with respect to ``batch.rows``.

        Raises:
            InvalidArgumentError: see `Tables.accumulate`.
            NonFiniteGradientError: a gradient contains NaN or infinity. No row was changed, and the
                gradients were dropped.
            CapacityError: a storage is full and must not evict rows. No row was changed.
            ClosedError: the container was closed.
        """
        if (batch is None) != (gradients is None):
            raise InvalidArgumentError(
                "step: give a batch and the gradients of its rows, or neither"
            )
        if batch is not None and gradients is not None:
            self.tables.accumulate(batch, gradients)
        resources = self.tables.container.resources
        if resources.num_gradients == self._num_gradients and resources.num_batch_inputs:
            warnings.warn(
                "step: rows were looked up for training since the last step, but no gradient was given, "
                "so no row changes; call step(batch, gradients) with the gradients of batch.rows, or "
                "look up with is_training=False",
                stacklevel=2,
            )
        self._num_gradients = resources.num_gradients
        self._updater.step()

    def state_tree(self) -> Any:
        """Returns the state that belongs to tables as a whole, for `Tables.save`."""
        return self._updater.state_tree()

    def set_state_tree(self, tree: Any) -> None:
        """Restores the result of `state_tree`.

        Args:
            tree: state of an optimizer of the same kind and tables.
        """
        self._updater.set_state_tree(tree)
