"""Checks the arguments of `Optimizer` and of its calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import resolve_method
from sparring.contracts import UpdateMethod
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.lookup.table_agent import TableAgent
from sparring_tf.saving.anchors import trained_table

__all__ = [
    "rate_of",
    "copy_optimizer",
    "validate_dense",
    "validate_accumulation_steps",
    "check_known",
    "check_missing",
    "validate_slices",
    "find_agents",
    "find_settings",
    "is_schedule",
    "reject_setting",
    "resolve_rate",
    "serialize_rate",
]


def is_schedule(rate: Any) -> bool:
    """Returns whether a learning rate is a schedule of Keras."""
    return isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)


def rate_of(native: Any) -> Any:
    """Returns the rate of an optimizer: a number, a schedule or a function."""
    rate = native._learning_rate
    if not isinstance(rate, keras.Variable) and callable(rate):
        return rate
    return float(keras.ops.convert_to_numpy(rate))


def copy_optimizer(native: Any) -> Any:
    """Returns a new optimizer with the settings and the current learning rate of `native`."""
    config = {**native.get_config(), "learning_rate": float(native.learning_rate)}
    return type(native).from_config(config)


def serialize_rate(rate: Any) -> Any:
    """Returns a rate as a JSON value."""
    if not isinstance(rate, keras.Variable) and callable(rate):
        return keras.saving.serialize_keras_object(rate)
    return float(keras.ops.convert_to_numpy(rate))


def resolve_rate(
    method: str | UpdateMethod, given: Any, hyperparameters: MutableMapping[str, Any]
) -> Any:
    """Returns the learning rate of an update method.

    Args:
        method: the update method or its name.
        given: the argument `learning_rate`.
        hyperparameters: the other arguments. `lr` is removed.

    Raises:
        InvalidArgumentError: the rate is given under both of its names.
    """
    lr = hyperparameters.pop("lr", None)
    if lr is not None and given is not None:
        raise InvalidArgumentError(
            f"Optimizer: lr={lr!r} and learning_rate={given!r} are two names of the learning rate; give "
            "one of them"
        )
    if lr is not None or given is not None:
        return lr if given is None else given
    name = method if isinstance(method, str) else method.name
    try:
        return rate_of(keras.optimizers.get(name.removeprefix("keras_")))
    except ValueError:
        return 0.01


_OF_EVERY_OPTIMIZER = (
    *("weight_decay", "clipnorm", "clipvalue", "global_clipnorm"),
    *("use_ema", "ema_momentum", "ema_overwrite_frequency", "gradient_accumulation_steps"),
)


def find_settings(sparse: Any) -> frozenset[str]:
    """Returns the names of the settings of an optimizer or update method that steps do not read again."""
    if isinstance(sparse, keras.optimizers.Optimizer):
        own = set(sparse.get_config()) - {"name", "learning_rate", "loss_scale_factor"}
    else:
        method = resolve_method(sparse) if isinstance(sparse, str) else sparse
        own = set(method.hyperparameters.model_fields)
    return frozenset({*own, *_OF_EVERY_OPTIMIZER})


def reject_setting(optimizer: Any, sparse: Any, name: str, value: Any) -> None:
    """Rejects the assignment of a setting, unless the value is the same.

    Raises:
        InvalidArgumentError: the value differs.
    """
    before = getattr(sparse, name, getattr(optimizer, name, None))
    if before is value or before == value:
        return
    remedy = f"create another Optimizer with {name}={value!r}, which continues the state of rows"
    if name in ("clipnorm", "global_clipnorm") and optimizer.dense is not None:
        remedy = f"assign optimizer.dense.{name} for ordinary variables; rows support clipvalue"
    raise InvalidArgumentError(
        f"Optimizer: found {name}={value!r}, assigned after the constructor, but steps over rows read it "
        f"only when the Optimizer is created; {remedy}"
    )


def validate_dense(given: Any, num_parts: int) -> Any:
    """Returns the optimizer of ordinary variables.

    Args:
        given: the argument `dense`.
        num_parts: number of calls per step.

    Raises:
        InvalidArgumentError: it is neither a Keras optimizer nor None, or it has another number of calls
            per step.
        UnsupportedError: it scales losses.
    """
    if given is None:
        return given
    if not isinstance(given, keras.optimizers.Optimizer):
        raise InvalidArgumentError(
            "Optimizer: dense must be a Keras optimizer, such as keras.optimizers.Adam(1e-3), or None; "
            f"found {given!r}"
        )
    is_scaler = isinstance(given, keras.optimizers.LossScaleOptimizer)
    if is_scaler or given.loss_scale_factor is not None:
        found = (
            type(given).__name__ if is_scaler else f"loss_scale_factor={given.loss_scale_factor}"
        )
        raise UnsupportedError(
            f"Optimizer: dense has {found}, but the loss would not be scaled; pass the optimizer "
            "without it, and wrap this Optimizer: sparring_tf.LossScaleOptimizer(optimizer)"
        )
    if given.gradient_accumulation_steps not in (None, num_parts):
        raise InvalidArgumentError(
            f"Optimizer: dense has gradient_accumulation_steps={given.gradient_accumulation_steps}, but "
            f"rows take a step every {num_parts} calls; pass gradient_accumulation_steps only to "
            "sparring_tf.Optimizer, which uses it for both"
        )
    return given


def validate_accumulation_steps(given: int | None) -> int:
    """Returns the number of calls per step.

    Raises:
        InvalidArgumentError: the number is not a positive integer.
    """
    if given is None:
        return 1
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise InvalidArgumentError(
            f"Optimizer: gradient_accumulation_steps must be a positive integer, found {given!r}"
        )
    return given


def check_known(
    variables: Sequence[Any], container: StepContainer, is_known: Callable[[Any], bool]
) -> None:
    """Checks that an optimizer can update variables.

    Args:
        variables: variables of a call. Anchors of all layers in `container` are accepted.
        container: container of the optimizer's tables.
        is_known: returns whether the optimizer was built with an ordinary variable.

    Raises:
        InvalidArgumentError: a table is in another container, or an ordinary variable is unknown.
    """
    for variable in variables:
        trained = trained_table(variable)
        if trained is None:
            if not is_known(variable):
                raise InvalidArgumentError(
                    f"apply: this Optimizer was built without variable {variable.name!r}, for example "
                    "because its layer was frozen; after layers are frozen or unfrozen, create another "
                    "Optimizer, and compile the model with it"
                )
        elif not trained.agent.is_in(container) or trained.name not in container.tables:
            raise InvalidArgumentError(
                f"table {trained.name!r} is trained, but this Optimizer was created without its "
                "layer; give it all layers with tables",
                table=trained.name,
            )


def check_missing(gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Rejects a step without any gradient, and warns about variables without one, as Keras does."""
    given = [*zip(gradients, variables, strict=True)]
    missing = [variable for gradient, variable in given if gradient is None]
    if len(missing) == len(given):
        raise InvalidArgumentError(
            "apply: no variable has a gradient, so the step would change nothing; compute the loss from "
            "the model's outputs inside the tape, and pass a loss to compile"
        )
    if any(gradient is not None and trained_table(each) is None for gradient, each in given):
        # The optimizer of ordinary variables warns about these.
        missing = [each for each in missing if trained_table(each) is not None]
    if missing:
        names = ", ".join(each.path for each in missing)
        warnings.warn(
            f"apply: found no gradients for {names}, which remain unchanged; if they should be trained, "
            "call their layers inside the tape, and compute the loss from the outputs",
            stacklevel=3,
        )


def validate_slices(gradient: Any, table: str) -> Any:
    """Returns the gradient of a table.

    Raises:
        InvalidArgumentError: it is not `tf.IndexedSlices`.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return gradient
    raise InvalidArgumentError(
        f"apply: the gradient of table {table!r} must be tf.IndexedSlices, as returned by a tape, found "
        f"{type(gradient).__name__}; do not convert it to a dense tensor, leave the table's anchor out "
        "of penalties, and combine gradients of several batches with "
        "gradient_accumulation_steps=…",
        table=table,
    )


def find_agents(layers: Any) -> list[TableAgent]:
    """Returns the agents of the layers with tables in `layers`, without duplicates.

    Raises:
        InvalidArgumentError: an element of `layers` is not a layer.
    """
    roots = list(layers) if isinstance(layers, (list, tuple)) else [layers]
    agents: dict[int, TableAgent] = {}
    for root in roots:
        if not isinstance(root, keras.layers.Layer):
            raise InvalidArgumentError(
                f"Optimizer takes models and layers with tables, found {type(root).__name__}; pass the "
                "model"
            )
        for weight in root.weights:
            trained = trained_table(weight)
            if trained is not None:
                agents.setdefault(id(trained.agent), trained.agent)
    return list(agents.values())
