"""Lookups of a program that is being traced: ops that find their tables by a handle, where they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tensorflow as tf

__all__ = ["gather", "is_traced", "pool", "trace_for"]

_handle: ContextVar[str | None] = ContextVar("sparring_program_handle", default=None)

tf.no_gradient("SparringProgramGather")
tf.no_gradient("SparringProgramPool")


@contextmanager
def trace_for(handle: str) -> Iterator[None]:
    """Lookups of layers in the block become a program's, by `handle`."""
    token = _handle.set(handle)
    try:
        yield
    finally:
        _handle.reset(token)


def is_traced() -> bool:
    """Whether a layer that looks up now is traced for a program."""
    return _handle.get() is not None


def gather(ids: Any, table: str, anchor: Any) -> Any:
    """As `lookup_ops.gather`, of a table of the program."""
    found = _ops().sparring_program_gather(
        ids=ids, anchor=_float_anchor(anchor), handle=_handle.get(), tables=table
    )
    return tf.cast(found, anchor.dtype)


def pool(
    ids: Any, lengths: Any, weights: Any, tables: Sequence[str], anchors: Sequence[Any]
) -> Any:
    """As `lookup_ops.pool`, of tables of the program."""
    found = _ops().sparring_program_pool(
        ids=ids,
        lengths=lengths,
        weights=tf.cast(weights, tf.float32),
        anchors=[_float_anchor(each) for each in anchors],
        handle=_handle.get(),
        tables="\n".join(tables),
    )
    return tf.cast(found, anchors[0].dtype)


def _float_anchor(anchor: Any) -> Any:
    """A constant, so that the program holds no anchors."""
    return tf.zeros([0, anchor.shape[1]], tf.float32)


def _ops() -> Any:
    from sparring_tf.program.library import load_operators

    return load_operators()[0]
