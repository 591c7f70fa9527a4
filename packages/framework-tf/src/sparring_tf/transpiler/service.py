"""Selects update methods of a service for Keras optimizers."""

from __future__ import annotations

from typing import Any

import keras

from sparring_tf.optim.known_optimizers import known_optimizer
from sparring_tf.optim.optimizer import Optimizer

__all__ = ["create_service_optimizer", "find_service_obstacle"]


def find_service_obstacle(optimizer: Any) -> str:
    """Returns why no update method of a service can execute an optimizer's steps; empty if one can."""
    if getattr(optimizer, "weight_decay", None):
        return (
            "its weight_decay depends on the learning rate of each step, but a service keeps all "
            "hyper-parameters of a table except lr constant; leave weight_decay out"
        )
    known = known_optimizer(optimizer, [])
    if isinstance(known, str):
        return (
            f"a service updates rows with update methods, but none can execute its steps: {known}"
        )
    return ""


def create_service_optimizer(model: Any, optimizer: Any, steps: int | None) -> Optimizer:
    """Creates the optimizer of a model whose tables are in a service.

    Plain SGD uses the method `sgd`, which PyTorch programs can also use; others use Keras's methods.

    Args:
        model: the model with the tables.
        optimizer: a Keras optimizer for which `find_service_obstacle` returns an empty text.
        steps: number of calls that make one step; None for one.
    """
    is_plain = type(optimizer) is keras.optimizers.SGD and not optimizer.momentum
    if is_plain and optimizer.clipvalue is None:
        return Optimizer.from_method(model, "sgd", optimizer, gradient_accumulation_steps=steps)
    return Optimizer(model, optimizer, update="method", gradient_accumulation_steps=steps)
