"""Lookups of a program while it is traced: ops that find their tables by a handle at run time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

__all__ = ["gather", "is_traced", "one_version", "pool", "trace_for"]

_handle: ContextVar[str | None] = ContextVar("sparring_program_handle", default=None)
_version: ContextVar[Any] = ContextVar("sparring_program_version", default=None)
"""Tensor with the number of the version that the traced run holds, or None."""

for _op in ("Gather", "Pool", "GatherIn", "PoolIn", "Begin", "Parameter"):
    tf.no_gradient(f"SparringProgram{_op}")


@contextmanager
def trace_for(handle: str) -> Iterator[None]:
    """Traces the lookups of layers in this context as lookups of the program `handle`."""
    token = _handle.set(handle)
    try:
        yield
    finally:
        _handle.reset(token)


def is_traced() -> bool:
    """Whether lookups of layers are currently traced for a program."""
    return _handle.get() is not None


@contextmanager
def one_version(variables: Sequence[Any]) -> Iterator[None]:
    """Traces a run that reads all rows, and the values of `variables`, from one version.

    Args:
        variables: variables of Keras, in the order of the program's parameters.
    """
    version = _ops().sparring_program_begin(handle=_handle.get(), tables="")
    values = []
    for place, each in enumerate(variables):
        value = _ops().sparring_program_parameter(
            version=version, T=tf.as_dtype(each.dtype), place=place
        )
        value.set_shape(each.shape)
        values.append((each, value))
    token = _version.set(version)
    try:
        with keras.StatelessScope(state_mapping=values):
            yield
    finally:
        _version.reset(token)


def gather(ids: Any, table: str, anchor: Any) -> Any:
    """Implements `lookup_ops.gather` for a table of the program."""
    found = _lookup(
        "gather", ids=ids, anchor=_float_anchor(anchor), handle=_handle.get(), tables=table
    )
    return tf.cast(found, anchor.dtype)


def pool(
    ids: Any, lengths: Any, weights: Any, tables: Sequence[str], anchors: Sequence[Any]
) -> Any:
    """Implements `lookup_ops.pool` for tables of the program."""
    found = _lookup(
        "pool",
        ids=ids,
        lengths=lengths,
        weights=tf.cast(weights, tf.float32),
        anchors=[_float_anchor(each) for each in anchors],
        handle=_handle.get(),
        tables="\n".join(tables),
    )
    return tf.cast(found, anchors[0].dtype)


def _lookup(name: str, **arguments: Any) -> Any:
    version = _version.get()
    if version is None:
        return getattr(_ops(), f"sparring_program_{name}")(**arguments)
    return getattr(_ops(), f"sparring_program_{name}_in")(**arguments, version=version)


def _float_anchor(anchor: Any) -> Any:
    """Returns a constant, so that the program does not contain anchors."""
    return tf.zeros([0, anchor.shape[1]], tf.float32)


def _ops() -> Any:
    from sparring_tf.program.library import load_operators

    return load_operators()[0]
