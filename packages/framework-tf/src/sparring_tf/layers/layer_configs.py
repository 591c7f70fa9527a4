"""Converts configurations of tables to JSON values, which Keras saves with a layer, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparring import StorageChoice
from sparring.adapter import StorageLike, parse_expiry
from sparring.contracts import Initializer, Storage, parse_admission
from sparring.errors import UnsupportedError
from sparring_tf.layers.table_configs import FeatureConfig, TableConfig

__all__ = [
    "feature_to_dict",
    "options_to_dict",
    "storage_to_dict",
    "table_to_dict",
    "table_from_dict",
]


def storage_to_dict(storage: StorageLike | None, table: str) -> Any:
    """Returns a storage as ``{"backend": …, option: …}`` or as the name of a backend.

    Raises:
        UnsupportedError: the storage is an open `Storage`.
    """
    if isinstance(storage, Storage):
        raise UnsupportedError(
            f"get_config: the storage of table {table!r} is an open Storage, which a saved layer cannot "
            "open again; pass the name of a backend with its options: storage={'backend': 'hkv', …}",
            table=table,
        )
    if isinstance(storage, StorageChoice):
        return {"backend": storage.backend, **storage.options}
    return dict(storage) if isinstance(storage, Mapping) else storage


def table_to_dict(table: TableConfig) -> dict[str, Any]:
    """Returns all settings of a table.

    Raises:
        UnsupportedError: its storage is an open `Storage`.
    """
    initializer = table.initializer
    if isinstance(initializer, Initializer):
        initializer = initializer.as_dict()
    admission, expiry = parse_admission(table.admission), parse_expiry(table.expire)
    return {
        "name": table.name,
        "embedding_dim": table.embedding_dim,
        "vocabulary_size": table.vocabulary_size,
        "initializer": initializer,
        "combiner": table.combiner,
        "dtype": table.dtype,
        "admission": None if admission is None else admission.as_dict(),
        "seed": table.seed,
        "storage": storage_to_dict(table.storage, table.name),
        "placement": table.placement,
        "expire": None if expiry is None else expiry.as_dict(),
    }


def feature_to_dict(feature: FeatureConfig) -> dict[str, Any]:
    """Returns all settings of a feature, with the name of its table."""
    shapes = {"input_shape": feature.input_shape, "output_shape": feature.output_shape}
    given = {name: list(shape) for name, shape in shapes.items() if shape is not None}
    return {"name": feature.name, "table": feature.table.name, **given}


def table_from_dict(plain: Mapping[str, Any]) -> TableConfig:
    """Creates a table configuration from the result of `table_to_dict`."""
    return TableConfig(**plain)


def options_to_dict(table: TableConfig, storage: StorageLike) -> dict[str, Any]:
    """Returns the settings of a layer with one table, by the names of the layer's arguments."""
    plain = table_to_dict(table)
    kept = ("vocabulary_size", "initializer", "admission", "seed", "placement", "expire")
    return {
        **{name: plain[name] for name in kept},
        "table_dtype": table.dtype,
        "storage": storage_to_dict(storage, table.name),
    }
