"""`scan`: inspects a Keras model and its optimizer without changing them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import keras

from sparring.adapter import (
    DistributionReport,
    ModuleReport,
    Outcome,
    describe_added_methods,
)
from sparring.errors import SparringError
from sparring_tf.layers.table_layer import TableLayer
from sparring_tf.optim.keras_shadow import check_row_by_row
from sparring_tf.optim.optimizer import Optimizer
from sparring_tf.transpiler.service import find_service_obstacle

__all__ = ["Scan", "children", "scan", "single_steps"]

_OF_ITS_OWN = {"__init__", "get_config"}


@dataclass(frozen=True, slots=True)
class Scan:
    """Result of `scan`.

    Args:
        report: report on all layers.
        found: path → embedding layer to replace.
    """

    report: DistributionReport
    found: dict[str, Any]


def children(layer: Any) -> Iterator[tuple[str, Any]]:
    """Yields the direct children of a layer with their names in a path."""
    names = {
        id(value): name for name, value in vars(layer).items() if isinstance(value, keras.Layer)
    }
    for each in layer._layers:
        if isinstance(each, keras.Layer):
            yield names.get(id(each), each.name), each


def scan(
    model: Any, optimizer: Any, *, is_lazy: bool, is_served: bool, keep: Collection[str]
) -> Scan:
    """Inspects each layer of a model, and its optimizer.

    Args:
        model: a model for one machine.
        optimizer: the optimizer of all its variables.
        is_lazy: whether rows without a gradient may remain unchanged if the optimizer would change them.
        is_served: whether the tables are in a service.
        keep: names or paths of layers that are not replaced.
    """
    reports: list[ModuleReport] = []
    found: dict[str, Any] = {}
    paths: dict[int, list[str]] = {}
    layers: dict[int, Any] = {}
    _walk(model, "", paths, layers)
    for path in sorted(set(keep) - {each for some in paths.values() for each in some}):
        reason = "it is named in keep, but the model has no such layer"
        reports.append(ModuleReport(path, "", Outcome.UNSUPPORTED, reason))
    if model.compiled:
        reason = "it is compiled; pass an uncompiled model, and compile the model that distribute returns"
        reports.append(ModuleReport("model", type(model).__name__, Outcome.UNSUPPORTED, reason))
    others = [model, *layers.values()]
    for number, layer in layers.items():
        names = {each.name for each in found.values()}
        judged = _classify_layer(layer, paths[number], keep, others, names)
        if judged is not None:
            outcome, reason = judged
            path = ", ".join(paths[number])
            reports.append(ModuleReport(path, type(layer).__name__, outcome, reason))
            if outcome is Outcome.REPLACED:
                found[paths[number][0]] = layer
    has_tables = any(isinstance(each, TableLayer) for each in layers.values())
    is_trained = any(each.trainable for each in found.values())
    reason = _find_optimizer_obstacle(optimizer, is_lazy or not is_trained)
    if is_served and not reason:
        reason = find_service_obstacle(single_steps(optimizer))
    if reason:
        reports.append(
            ModuleReport("optimizer", type(optimizer).__name__, Outcome.UNSUPPORTED, reason)
        )
    if not (found or has_tables or any(each.outcome is Outcome.UNSUPPORTED for each in reports)):
        reason = "it has no embeddings; there is nothing to distribute"
        reports.append(ModuleReport("model", type(model).__name__, Outcome.UNSUPPORTED, reason))
    return Scan(DistributionReport(tuple(reports)), found)


def single_steps(optimizer: Any) -> Any:
    """Returns the optimizer, or a copy of it that does not accumulate gradients."""
    if not optimizer.gradient_accumulation_steps:
        return optimizer
    return type(optimizer).from_config(
        {**optimizer.get_config(), "gradient_accumulation_steps": None}
    )


def _walk(layer: Any, path: str, paths: dict[int, list[str]], layers: dict[int, Any]) -> None:
    for name, each in children(layer):
        where = f"{path}.{name}" if path else name
        known = paths.setdefault(id(each), [])
        if where in known:
            continue
        known.append(where)
        layers.setdefault(id(each), each)
        if not isinstance(each, TableLayer):
            _walk(each, where, paths, layers)


def _classify_layer(
    layer: Any,
    where: list[str],
    keep: Collection[str],
    others: Collection[Any],
    names: Collection[str],
) -> tuple[Outcome, str] | None:
    """Returns outcome and reason for a layer, or None if it has no variables."""
    if isinstance(layer, TableLayer):
        return Outcome.KEPT, "it already looks up in tables"
    if not isinstance(layer, keras.layers.Embedding):
        has_own = layer._trainable_variables or layer._non_trainable_variables
        return (Outcome.KEPT, "ordinary variables") if has_own else None
    if not set(keep).isdisjoint(where):
        return Outcome.KEPT, "named in keep"
    reason = _find_obstacle(layer, others, names)
    if reason:
        return Outcome.UNSUPPORTED, f"{reason}; or do not replace the layer: keep=[{where[0]!r}]"
    note = "" if layer.trainable else "; frozen: rows are read only"
    return Outcome.REPLACED, f"table {layer.name}{note}"


def _find_obstacle(layer: Any, others: Collection[Any], names: Collection[str]) -> str:
    if added := describe_added_methods(type(layer), keras.layers.Embedding, _OF_ITS_OWN):
        return added
    for setting in ("embeddings_regularizer", "embeddings_constraint", "activity_regularizer"):
        if getattr(layer, setting) is not None:
            return f"{setting} depends on the whole weight, but a step only reads the rows of its batch"
    if layer.lora_enabled or layer.lora_rank or layer.quantization_mode:
        return "its weight is quantized, or has low-rank factors"
    if layer.name in names:
        return (
            f"two layers have the name {layer.name!r}, which is also their table name; rename one"
        )
    if layer.built:
        for other in others:
            # Variables in lists and dicts are included.
            held = [*other._trainable_variables, *other._non_trainable_variables]
            if other is not layer and any(each is layer._embeddings for each in held):
                return f"its weight is tied: layer {other.name!r} has the same variable"
    return ""


def _find_optimizer_obstacle(optimizer: Any, is_lazy: bool) -> str:
    if isinstance(optimizer, Optimizer):
        return "it is already an optimizer of rows; pass one of Keras"
    if optimizer.built:
        return "it was already built for variables; pass one that has taken no step"
    for setting in ("use_ema", "clipnorm", "global_clipnorm"):
        if getattr(optimizer, setting, None):
            return f"{setting} depends on all variables at once, but rows are not variables"
    if not is_lazy:
        reason = _why_inexact(optimizer)
        if reason:
            return (
                f"{reason}. Use SGD without momentum, weight_decay and clipvalue; or semantics='lazy', "
                "which updates rows when they are looked up, with the sum of their gradients"
            )
    try:
        check_row_by_row(single_steps(optimizer))
    except SparringError as error:
        return str(error)
    return ""


def _why_inexact(optimizer: Any) -> str:
    """Returns why rows would differ from the rows of a weight; empty if they would not."""
    kind = type(optimizer).__name__
    if optimizer.clipvalue is not None:
        return (
            f"{kind} with clipvalue={optimizer.clipvalue} clips the gradient of each occurrence of an id "
            "in a batch, but a table clips their sum"
        )
    if type(optimizer) is keras.optimizers.Adagrad and not optimizer.weight_decay:
        return (
            "Adagrad squares the gradient of each occurrence of an id in a batch, but a table squares "
            "their sum"
        )
    found = [name for name in ("momentum", "weight_decay") if getattr(optimizer, name, None)]
    if type(optimizer) is not keras.optimizers.SGD or found:
        what = kind + "".join(f" with {name}={getattr(optimizer, name)}" for name in found)
        return (
            f"{what} changes rows, or decays their state, in steps without a gradient for them, but rows "
            "of tables only change when a batch contains their ids"
        )
    return ""
