"""`Optimizer`: optax's optimizers, or update methods, over the rows of tables."""

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
    """Updates the rows of tables. Ordinary parameters are the caller's, as ever in JAX.

    Use::

        optimizer = Optimizer(tables, optax.adagrad(0.05))
        optimizer = Optimizer(tables, "rowwise_adagrad", lr=0.05)
        …
        optimizer.step(batch, row_gradients)

    An optimizer of optax gets the rows that have gradients as its parameters, with the state that is
    stored behind them. An update method changes each row in one visit, without a copy.

    Rows without a gradient in a step do not move: Adam is lazy, and weight decay decays rows that were
    looked up. Schedules count the container's steps.

    Args:
        tables: whose rows it updates.
        sparse: an optimizer of optax that works element by element, or an update method or its name.
        by_table: for update methods: table → hyper-parameters of its own.
        name: of an optimizer of optax, by which snapshots know the state of its rows. None: ``Adagrad``
            or ``Adam``, which PyTorch and Keras read, where the state is theirs; else the names of its
            leaves.
        **hyperparameters: of an update method; `lr` may be a schedule: step → number.

    Raises:
        InvalidArgumentError: hyper-parameters that do not go with `sparse`; rows with another
            optimizer's state.
        UnsupportedError: an optimizer of optax whose state cannot be cut into rows, or that moves a row
            depending on others.
        PluginError: no update method of that name.
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
        """Gradients of the container before the last step."""
        self._updater: NativeUpdater | FusedUpdater
        if isinstance(sparse, (str, UpdateMethod)):
            if name is not None:
                raise InvalidArgumentError("Optimizer: name is for optimizers of optax")
            method = resolve_method(sparse) if isinstance(sparse, str) else sparse
            self._updater = FusedUpdater(tables, method, hyperparameters, by_table or {})
        elif isinstance(sparse, optax.GradientTransformation):
            if by_table or hyperparameters:
                given = ", ".join([*hyperparameters, *(["by_table"] if by_table else [])])
                raise InvalidArgumentError(
                    f"Optimizer: {given} comes with update methods; give hyper-parameters of an "
                    "optimizer of optax to it, as optax.adam(1e-3)"
                )
            self._updater = NativeUpdater(tables, sparse, name)
        else:
            raise InvalidArgumentError(
                "Optimizer takes an optimizer of optax, as optax.adagrad(0.05), or the name of an update "
                f"method, as 'rowwise_adagrad'; found {sparse!r}"
            )

    def step(self, batch: Batch | None = None, gradients: Mapping[str, Any] | None = None) -> None:
        """Changes rows by the gradients since the last step. All ranks call it.

        Args:
            batch: handed to `Tables.accumulate` with its gradients before; None: they were already.
            gradients: of ``batch.rows``.

        Raises:
            InvalidArgumentError: as `Tables.accumulate`.
            NonFiniteGradientError: a gradient holds NaN or infinity. No row has changed; the gradients
                are dropped.
            CapacityError: a storage is full and may not evict. No row has changed.
            ClosedError: the container was closed.
        """
        if (batch is None) != (gradients is None):
            raise InvalidArgumentError(
                "step: give a batch with the gradients of its rows, or neither"
            )
        if batch is not None and gradients is not None:
            self.tables.accumulate(batch, gradients)
        resources = self.tables.container.resources
        if resources.num_gradients == self._num_gradients and resources.num_batch_inputs:
            warnings.warn(
                "step: rows were looked up for training since the last step, and no gradient was handed "
                "in, so no row changes; call step(batch, gradients) with the gradients of batch.rows, or "
                "look up with is_training=False",
                stacklevel=2,
            )
        self._num_gradients = resources.num_gradients
        self._updater.step()

    def state_tree(self) -> Any:
        """State of tables as a whole, for `Tables.save`."""
        return self._updater.state_tree()

    def set_state_tree(self, tree: Any) -> None:
        """Takes back what `state_tree` gave."""
        self._updater.set_state_tree(tree)
