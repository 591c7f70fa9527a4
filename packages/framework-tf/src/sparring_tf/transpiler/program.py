"""`distribute` and `restore` for Keras models."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from sparring.adapter import (
    DistributionReport,
    PlanLike,
    StorageLike,
    check_choices,
    choose_service_storage,
    choose_unread_initializer,
    explain_missing_weight,
    fill_service,
    write_rows,
)
from sparring.errors import InvalidArgumentError
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.transpiler.replaced_embedding import ReplacedEmbedding, disable_weight
from sparring_tf.transpiler.scan import Scan, children, scan, single_steps
from sparring_tf.transpiler.service import create_service_optimizer

__all__ = ["distribute", "distribution_report", "restore"]


def distribute(
    model: Any,
    optimizer: Any,
    *,
    plan: PlanLike = None,
    semantics: str = "exact",
    keep: Collection[str] = (),
    storage: StorageLike = "hkv",
    service: str | os.PathLike[str] | None = None,
) -> tuple[Any, Optimizer]:
    """Converts a Keras model for one machine to a model for many ranks, which mpiexec starts.

    Only two lines of a program change::

        from sparring_tf import distribute
        …
        model, optimizer = distribute(model, optimizer)
        model.compile(optimizer=optimizer, loss=…)

    Each `keras.layers.Embedding` is replaced by a layer with a table that starts with its weights. A
    functional or sequential model is rebuilt with the same other layers; a subclassed model is changed in
    place. Call it before `compile`.

    Args:
        model: a Keras model. The weights of rank 0 are used.
        optimizer: a Keras optimizer that has taken no step. It updates rows and all other variables.
        plan: sharding of the tables; see `Optimizer`. By default, tables are sharded by rows.
        semantics: ``exact`` rejects an optimizer that would change rows without a gradient; ``lazy``
            does not change such rows, so that the original optimizer would give different results.
        keep: names or paths of layers that are not replaced. All ranks have their weights.
        storage: storage backend of the rows.
        service: configuration file of a service with the role ``parameters``. The service stores
            the tables and executes the optimizer's update method. Lookups pull rows from it, and
            steps push gradients and wait until they are applied. Each process is an independent
            trainer. A service without rows gets the model's weights; a service with rows keeps its
            rows.

    Returns:
        The model, and an `Optimizer` whose `report` is a `sparring.adapter.DistributionReport`.

    Raises:
        UnsupportedError: layers or the optimizer cannot be distributed. The message lists all of them,
            and the attribute ``report`` contains them. Nothing was changed.
        InvalidArgumentError: `semantics` has an unknown value, or `model` or `optimizer` has the
            wrong type.
    """
    scanned = _scan(model, optimizer, semantics, keep, is_served=service is not None)
    if service is not None:
        storage = choose_service_storage(service, plan, storage)
    scanned.report.check()
    weights: list[tuple[str, npt.NDArray[Any]]] = []
    made: dict[int, Any] = {}
    for path, layer in scanned.found.items():
        layer.build()
        values = np.asarray(keras.ops.convert_to_numpy(layer.embeddings))
        is_known = values.dtype in (np.float16, np.float32, np.float64)
        weights.append((layer.name, values if is_known else values.astype(np.float32)))
        made[id(layer)] = _create_table_layer(
            layer, storage, explain_missing_weight(path, layer.name)
        )
    rebuilder = _Rebuilder(lambda layer: made.get(id(layer), layer))
    new = rebuilder.rebuild(model)
    steps = optimizer.gradient_accumulation_steps
    single = single_steps(optimizer)
    try:
        if service is None:
            joint = Optimizer(new, single, plan=plan or {}, gradient_accumulation_steps=steps)
            for table, values in weights:
                write_rows(joint.container, table, values)
        else:
            joint = create_service_optimizer(new, single, steps)
            fill_service(joint.container, {name: each.astype(np.float32) for name, each in weights})
    except BaseException:
        rebuilder.undo()
        raise
    joint.report = scanned.report
    for layer in scanned.found.values():
        disable_weight(layer, made[id(layer)].explain_missing_weight)
    return new, joint


def distribution_report(
    model: Any, optimizer: Any, *, semantics: str = "exact", keep: Collection[str] = ()
) -> DistributionReport:
    """Reports what `distribute` would do with the same arguments, without changing anything.

    `model`, `optimizer`, `semantics` and `keep` are those of `distribute`.

    Raises:
        InvalidArgumentError: see `distribute`.
    """
    return _scan(model, optimizer, semantics, keep).report


def restore(model: Any) -> Any:
    """Replaces the layers that `distribute` created by Keras's layers, with the trained weights.

    All ranks call it, and each gets all weights. Compile the model again afterwards.

    Args:
        model: a model that `distribute` returned.

    Returns:
        The model: rebuilt if it is functional or sequential, otherwise the same object.

    Raises:
        InvalidArgumentError: the model has no layers that `distribute` created.
    """
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(
            f"restore takes a Keras model, found {type(model).__name__}; pass the model that "
            "distribute returned"
        )
    replaced = [each for each in model._flatten_layers() if isinstance(each, ReplacedEmbedding)]
    if not replaced:
        raise InvalidArgumentError(
            f"restore: model {model.name!r} has no layer that distribute created; pass the model that "
            "distribute returned"
        )
    made: dict[int, Any] = {}
    for layer in replaced:
        count = layer.num_embeddings
        found = layer.agent.container.lookup_all(
            [(layer.name, np.arange(count))], is_registered=False
        )
        plain = layer.replaced.kind.from_config(layer.replaced.config)
        plain.build()
        plain.set_weights([found[0].rows[found[0].inverse]])
        plain.trainable = layer.trainable
        made[id(layer)] = plain
    return _Rebuilder(lambda layer: made.get(id(layer), layer)).rebuild(model)


class _Replaced:
    """Class and configuration of a Keras layer. Keras would track the layer itself as a part."""

    def __init__(self, layer: Any) -> None:
        self.kind, self.config = type(layer), layer.get_config()


class _Rebuilder:
    """Replaces layers inside a model.

    Args:
        other: returns the replacement of a layer, or the layer itself.
    """

    def __init__(self, other: Callable[[Any], Any]) -> None:
        self._other = other
        self._known: dict[int, tuple[Any, Any]] = {}

    def rebuild(self, layer: Any) -> Any:
        """Returns the layer with replaced inner layers; the same object for each occurrence."""
        if id(layer) not in self._known:
            self._known[id(layer)] = layer, self._of(layer)
        return self._known[id(layer)][1]

    def undo(self) -> None:
        """Restores the layers that were replaced in place."""
        before = {id(new): layer for layer, new in self._known.values() if new is not layer}
        for layer, new in self._known.values():
            if new is layer and isinstance(layer, keras.Layer):
                ours = [id(each) for _, each in children(layer) if id(each) in before]
                if ours:
                    self._put_into(layer, {each: before[each] for each in ours})

    def _of(self, layer: Any) -> Any:
        other = self._other(layer)
        if other is not layer or not isinstance(layer, keras.Layer):
            return other
        new = {id(each): self.rebuild(each) for _, each in children(layer)}
        changed = {key: each for key, each in new.items() if id(each) != key}
        if not changed:
            return layer
        if isinstance(layer, (keras.Sequential, keras.src.models.Functional)):
            is_compiled, layer.compiled = layer.compiled, False  # Keras would clone its optimizer
            try:
                return keras.models.clone_model(layer, clone_function=self.rebuild)
            finally:
                layer.compiled = is_compiled
        self._put_into(layer, changed)
        return layer

    @staticmethod
    def _put_into(layer: Any, changed: dict[int, Any]) -> None:
        """Replaces attributes, and members of lists and dicts, of a custom layer."""
        tracker = layer._tracker
        is_locked = tracker.locked
        tracker.unlock()
        for each in [each for _, each in children(layer) if id(each) in changed]:
            tracker.untrack(each)
        for name, value in list(vars(layer).items()):
            if name.startswith("_"):
                continue
            if id(value) in changed:
                setattr(layer, name, changed[id(value)])
            elif isinstance(value, dict) and not changed.keys().isdisjoint(map(id, value.values())):
                new = {key: changed.get(id(each), each) for key, each in value.items()}
                setattr(layer, name, new)
            elif isinstance(value, (list, tuple)) and not changed.keys().isdisjoint(map(id, value)):
                setattr(layer, name, type(value)(changed.get(id(each), each) for each in value))
        if is_locked:
            tracker.lock()


def _scan(
    model: Any, optimizer: Any, semantics: str, keep: Collection[str], *, is_served: bool = False
) -> Scan:
    if not isinstance(model, keras.Model):
        raise InvalidArgumentError(
            f"distribute takes a Keras model, found {type(model).__name__}; pass the model first, "
            "then the optimizer"
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            f"distribute takes a Keras optimizer, found {type(optimizer).__name__}; pass for example "
            "keras.optimizers.Adagrad(0.05)"
        )
    check_choices(semantics, keep)
    return scan(model, optimizer, is_lazy=semantics == "lazy", is_served=is_served, keep=keep)


def _create_table_layer(layer: Any, storage: StorageLike, why: str) -> ReplacedEmbedding:
    made = ReplacedEmbedding(
        layer.output_dim,
        num_embeddings=layer.input_dim,
        has_mask=layer.mask_zero,
        table_dtype=keras.backend.standardize_dtype(layer.embeddings.dtype),
        initializer=choose_unread_initializer(storage),
        storage=storage,
        name=layer.name,
        dtype=layer.dtype_policy,
        trainable=layer.trainable,
    )
    made.replaced, made.explain_missing_weight = _Replaced(layer), why
    return made
