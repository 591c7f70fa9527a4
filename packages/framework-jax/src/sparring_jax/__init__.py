"""JAX adapter of sparring: a lookup returns rows for a jitted step, and optax updates them.

Names are imported on first access, because listing plugins imports `sparring_jax.plugin` and must
neither require JAX nor wait for its import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_jax.batch import Batch, Positions, embeddings, pad_weights, pool
    from sparring_jax.ids import pack_ids
    from sparring_jax.job import join_job
    from sparring_jax.optimizer import Optimizer
    from sparring_jax.tables import Tables

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Optimizer",
    "Positions",
    "Tables",
    "__version__",
    "embeddings",
    "join_job",
    "pack_ids",
    "pad_weights",
    "pool",
]

_HOMES = {
    "Batch": "batch",
    "Optimizer": "optimizer",
    "Positions": "batch",
    "Tables": "tables",
    "embeddings": "batch",
    "join_job": "job",
    "pack_ids": "ids",
    "pad_weights": "batch",
    "pool": "batch",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparring_jax.plugin import check_jax

    check_jax()
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
