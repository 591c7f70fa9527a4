"""Update methods of a service, for optimizers of Keras."""

from __future__ import annotations

from typing import Any

import keras

from sparring_tf.optim.known_optimizers import known_optimizer
from sparring_tf.optim.optimizer import Optimizer

__all__ = ["create_service_optimizer", "find_service_obstacle"]


def find_service_obstacle(optimizer: Any) -> str:
    """Why no update method of a service takes the steps of an optimizer; empty: one does."""
    if getattr(optimizer, "weight_decay", None):
        return (
            "its weight_decay goes by the learning rate of each step, and a service keeps all "
            "hyper-parameters of a table but lr; leave weight_decay out"
        )
    known = known_optimizer(optimizer, [])
    if isinstance(known, str):
        return f"a service updates rows by update methods, and none takes its steps: {known}"
    return ""


def create_service_optimizer(model: Any, optimizer: Any, steps: int | None) -> Optimizer:
    """The optimizer of a model whose tables are in a service.

    Tables under plain SGD are `sgd`, which programs of PyTorch train too; others are of Keras's methods.

    Args:
        model: with the tables.
        optimizer: of Keras, for which `find_service_obstacle` has no reason.
        steps: so many calls make one step; None: each does.
    """
    is_plain = type(optimizer) is keras.optimizers.SGD and not optimizer.momentum
    if is_plain and optimizer.clipvalue is None:
        return Optimizer.from_method(model, "sgd", optimizer, gradient_accumulation_steps=steps)
    return Optimizer(model, optimizer, update="method", gradient_accumulation_steps=steps)
