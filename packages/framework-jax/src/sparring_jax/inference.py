"""Lookups inside a jitted function, implemented with `jax.pure_callback`."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from sparring import StepContainer
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_jax.ids import unpack_ids

__all__ = ["infer"]


def infer(container: StepContainer, table: str, ids: Any) -> jax.Array:
    """Implements `Tables.infer`."""
    config = container.entry(table).config
    is_packed = ids.dtype == np.uint32 and ids.ndim > 0 and ids.shape[-1] == 2
    if not is_packed and ids.dtype != np.int64:
        raise InvalidArgumentError(
            f"infer: ids for table {table!r} are {ids.dtype} {ids.shape} inside JAX, which truncates "
            "64-bit ids to 32 bits; pass sparring_jax.pack_ids(ids) to the jitted function, or "
            "set jax_enable_x64 and give int64",
            table=table,
        )
    if not container.reads_directly([table]):
        raise UnsupportedError(
            f"infer: the rows of table {table!r} are on {container.collective.world_size} ranks, so all "
            "ranks must take part in a lookup; call Tables.lookup(…, is_training=False) before the "
            "jitted function, or load a snapshot in one process",
            table=table,
        )
    shape = ids.shape[:-1] if is_packed else ids.shape

    def found(given: Any) -> npt.NDArray[Any]:
        # vmap prepends axes.
        array = np.asarray(given)
        whole = unpack_ids(array) if is_packed else np.ascontiguousarray(array)
        each = container.lookup(table, whole.reshape(-1), is_registered=False)
        rows: npt.NDArray[Any] = np.asarray(each.rows)[np.asarray(each.inverse)]
        return rows.reshape(*whole.shape, config.dim)

    result = jax.ShapeDtypeStruct((*shape, config.dim), config.computing_dtype)
    embedded: jax.Array = jax.pure_callback(found, result, ids, vmap_method="expand_dims")
    return embedded
