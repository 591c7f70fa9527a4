"""Ordinary parameters on several ranks: broadcast at the start, then updated with mean gradients."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from sparring.contracts import Collective, Reduction

__all__ = ["average_gradients", "broadcast"]

_Tree = TypeVar("_Tree")


def average_gradients(gradients: _Tree, collective: Collective) -> _Tree:
    """Averages the leaves of a pytree over all ranks. All ranks pass the same structure and shapes."""
    leaves, structure = jax.tree.flatten(gradients)
    if collective.world_size == 1 or not leaves:
        return gradients
    arrays = [np.asarray(each) for each in leaves]
    # float64 represents every gradient exactly, so one exchange is enough for all dtypes.
    joined = np.concatenate([each.astype(np.float64).reshape(-1) for each in arrays])
    means = collective.all_reduce(joined, Reduction.MEAN)
    ends = np.cumsum([each.size for each in arrays])[:-1]
    parts = [
        jnp.asarray(part.reshape(own.shape).astype(own.dtype))
        for part, own in zip(np.split(means, ends), arrays, strict=True)
    ]
    result: _Tree = jax.tree.unflatten(structure, parts)
    return result


def broadcast(parameters: _Tree, collective: Collective) -> _Tree:
    """Returns the leaves of rank 0's pytree on all ranks."""
    if collective.world_size == 1:
        return parameters

    def first(leaf: Any) -> jax.Array:
        mine = np.ascontiguousarray(leaf)
        sent = mine.reshape(-1).view(np.uint8) if collective.rank == 0 else np.empty(0, np.uint8)
        found = collective.all_gather(sent)[0]
        return jnp.asarray(np.frombuffer(found.tobytes(), mine.dtype).reshape(np.shape(leaf)))

    result: _Tree = jax.tree.map(first, parameters)
    return result
