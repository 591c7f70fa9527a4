"""Lookups in tables whose rows are on several ranks.

The exchange between ranks is implemented in core, in Python, so a graph calls it with
`tf.numpy_function`. All ranks must make the same calls in the same order: in a graph, each call reads and
writes one variable, which keeps the calls in the order in which they were traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring import StepContainer
from sparring.adapter import gather as native_gather
from sparring_tf.lookup import lookup_ops

__all__ = ["gather", "run_in_order", "order_variable", "own_errors"]

_order: list[Any] = []
_open_scopes: list[list[BaseException]] = []
"""Last error for each active `own_errors`; empty if none is active."""


@contextmanager
def own_errors() -> Iterator[None]:
    """Raises the original error of this package if TensorFlow's graph replaced it by another."""
    failed: list[BaseException] = []
    _open_scopes.append(failed)
    try:
        yield
    except tf.errors.OpError as error:
        if not failed:
            raise
        raise failed.pop() from error
    finally:
        # Compared by identity, because empty lists are equal.
        _open_scopes[:] = [each for each in _open_scopes if each is not failed]


def gather(
    container: StepContainer,
    requests: Sequence[tuple[str, Any]],
    anchors: Mapping[str, Any],
    is_training: bool,
    check: Callable[[], None],
) -> list[Any]:
    """Implements `TableLayer._gather` with one exchange. Calls `check` before it."""
    tables = [table for table, _ in requests]

    def look_up(*all_ids: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
        check()
        asked = [
            (table, np.ascontiguousarray(ids.reshape(-1)))
            for table, ids in zip(tables, all_ids, strict=True)
        ]
        found = container.lookup_all(asked, is_registered=is_training)
        for each in found:
            if each.shadow_id is not None:
                # The gradient contains its own ids, so these keys are not needed.
                container.resources.release(each.shadow_id)
        return [native_gather(each.rows, each.inverse) for each in found]

    dtypes = [tf.as_dtype(container.tables[table].computing_dtype) for table in tables]
    rows = run_in_order(look_up, [ids for _, ids in requests], dtypes)
    result = []
    for (table, ids), each in zip(requests, rows, strict=True):
        anchor = anchors[table].value
        flat = tf.reshape(ids, [-1])
        found = tf.ensure_shape(each, [None, anchor.shape[1]])
        found = lookup_ops.attach(found, flat, anchor)
        shape = tf.concat([tf.shape(ids), tf.constant(anchor.shape.as_list()[1:])], 0)
        shaped = tf.reshape(found, shape)
        shaped.set_shape(ids.shape.concatenate(anchor.shape[1:]))
        result.append(shaped)
    return result


def order_variable() -> Any:
    """Returns the variable that keeps calls in order.

    Layers call this in their constructor: if the first trace of a graph failed, its second trace must not
    create variables.
    """
    if not _order:
        with tf.init_scope():
            _order.append(tf.Variable(0, dtype=tf.int64, trainable=False, name="sparring_order"))
    return _order[0]


def run_in_order(
    function: Callable[..., Sequence[npt.NDArray[Any]]],
    inputs: Sequence[Any],
    dtypes: Sequence[Any],
) -> list[Any]:
    """Calls a function of NumPy arrays after all calls that were traced before it.

    Args:
        function: returns one array per element of `dtypes`.
        inputs: tensors that are passed to the function as arrays.
        dtypes: dtypes of the results.
    """
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(each) for each in function(*(each.numpy() for each in inputs))]
    order = order_variable()
    results = tf.numpy_function(
        partial(_call_recording_errors, function), [order.read_value(), *inputs], list(dtypes)
    )
    with tf.control_dependencies(results):
        order.assign_add(1)
    return list(results)


def _call_recording_errors(function: Callable[..., Any], _: Any, *arrays: Any) -> Any:
    try:
        return function(*arrays)
    except BaseException as error:
        for each in _open_scopes:
            each[:] = [error]
        raise
