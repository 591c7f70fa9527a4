"""Rejects strategies of `tf.distribute`, whose replicas would look up and train rows several times."""

from __future__ import annotations

import tensorflow as tf

from sparring.errors import UnsupportedError

__all__ = ["reject_strategies"]


def reject_strategies(operation: str) -> None:
    """Checks that no strategy of `tf.distribute` is active.

    Args:
        operation: the operation and its object, for the error message.

    Raises:
        UnsupportedError: it is called in the scope of a strategy, or in `Strategy.run`.
    """
    if tf.distribute.has_strategy():
        strategy = type(tf.distribute.get_strategy()).__name__
        raise UnsupportedError(
            f"{operation}: found a {strategy} of tf.distribute, which cannot copy the rows of tables to "
            "its replicas; leave the strategy out, and start one process per rank instead, for example "
            "mpiexec -n 4 python …, and give the layers a container of these ranks"
        )
