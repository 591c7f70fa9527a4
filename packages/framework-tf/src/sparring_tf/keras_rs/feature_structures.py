"""Nested structures of features, as accepted by keras-rs' `DistributedEmbedding`.

::

    {"user": FeatureConfig, "seen": [FeatureConfig, FeatureConfig]}      a structure
    {"user": …, "seen.0": …, "seen.1": …}                                the same by path

A structure is a `FeatureConfig`, or a dict, list or tuple of structures. Values that belong to it, such
as ids or shapes, are nested in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparring.errors import InvalidArgumentError
from sparring_tf.layers.table_configs import FeatureConfig

__all__ = ["FeatureStructure", "list_features"]

_LEAF, _CONTAINERS = "feature", ("dict", "list", "tuple")


@dataclass(frozen=True)
class FeatureStructure:
    """A structure of features. Keras does not look into objects of this class.

    Args:
        nested: the structure; see this module.
    """

    nested: Any

    def values_by_path(self, values: Any, what: str) -> dict[str, Any]:
        """Returns the value of each feature, by the feature's path.

        Args:
            values: a structure like this one, whose leaves are anything.
            what: name of the values in error messages.

        Raises:
            InvalidArgumentError: `values` has other keys, another length or another kind of container.
        """
        return dict(_pair_leaves(self.nested, values, "", what))

    def pack(self, by_path: Mapping[str, Any]) -> Any:
        """Returns a structure like this one with the values of `by_path`."""
        return _pack(self.nested, by_path, "")

    def as_dict(self) -> dict[str, Any]:
        """Returns the structure as JSON values, with the path of each feature."""
        return _plain(self.nested, "")

    @classmethod
    def from_dict(
        cls, plain: Mapping[str, Any], features: Mapping[str, FeatureConfig]
    ) -> FeatureStructure:
        """Returns the structure that `as_dict` described, with the features of these paths."""
        return cls(_nested(plain, features))


def list_features(structure: Any) -> dict[str, FeatureConfig]:
    """Returns the features of a structure by path.

    If the structure is a single feature, its path is the feature's name.

    Raises:
        InvalidArgumentError: a leaf of the structure is not a feature, or two features have the same
            path.
    """
    features: dict[str, FeatureConfig] = {}
    for path, feature in _leaves(structure, ""):
        if not isinstance(feature, FeatureConfig):
            raise InvalidArgumentError(
                f"feature {path!r}: must be a sparring_tf.FeatureConfig, found "
                f"{type(feature).__name__}",
                feature=path,
            )
        if path in features:
            raise InvalidArgumentError(
                f"two features have the path {path!r}; rename the key that contains a dot",
                feature=path,
            )
        features[path] = feature
    return features


def _items(structure: Any) -> list[tuple[Any, Any]] | None:
    """Returns the keys and values of a container, or None if `structure` is a leaf."""
    if isinstance(structure, Mapping):
        return list(structure.items())
    return list(enumerate(structure)) if isinstance(structure, (list, tuple)) else None


def _leaves(structure: Any, path: str) -> Iterator[tuple[str, Any]]:
    items = _items(structure)
    if items is None:
        yield _leaf_path(structure, path), structure
        return
    for key, value in items:
        yield from _leaves(value, _concatenate(path, key))


def _pair_leaves(structure: Any, values: Any, path: str, what: str) -> Iterator[tuple[str, Any]]:
    items = _items(structure)
    if items is None:
        yield _leaf_path(structure, path), values
        return
    place = f" at {path!r}" if path else ""
    is_dict = isinstance(structure, Mapping)
    if not isinstance(values, Mapping if is_dict else (list, tuple)):
        raise InvalidArgumentError(
            f"{what}{place}: found {type(values).__name__}; give a {type(structure).__name__} with the "
            "structure of the feature configurations"
        )
    keys, found = (set(dict(_items(each) or ())) for each in (structure, values))
    if keys != found:
        missing, unknown = (sorted(map(str, each)) for each in (keys - found, found - keys))
        raise InvalidArgumentError(
            f"{what}{place}: missing {', '.join(missing) or 'nothing'}, unknown "
            f"{', '.join(unknown) or 'nothing'}; give one value per feature configuration"
        )
    for key, each in items:
        yield from _pair_leaves(each, values[key], _concatenate(path, key), what)


def _pack(structure: Any, by_path: Mapping[str, Any], path: str) -> Any:
    items = _items(structure)
    if items is None:
        return by_path[_leaf_path(structure, path)]
    values = [(key, _pack(each, by_path, _concatenate(path, key))) for key, each in items]
    if isinstance(structure, Mapping):
        return dict(values)
    own = [value for _, value in values]
    if hasattr(structure, "_fields"):
        return type(structure)(*own)
    return tuple(own) if isinstance(structure, tuple) else own


def _plain(structure: Any, path: str) -> dict[str, Any]:
    items = _items(structure)
    if items is None:
        return {_LEAF: _leaf_path(structure, path)}
    values = [(key, _plain(each, _concatenate(path, key))) for key, each in items]
    if isinstance(structure, Mapping):
        return {"dict": [[key, value] for key, value in values]}
    kind = "tuple" if isinstance(structure, tuple) else "list"
    return {kind: [value for _, value in values]}


def _nested(plain: Mapping[str, Any], features: Mapping[str, FeatureConfig]) -> Any:
    if _LEAF in plain:
        return features[plain[_LEAF]]
    (kind,) = (each for each in _CONTAINERS if each in plain)
    if kind == "dict":
        return {key: _nested(each, features) for key, each in plain[kind]}
    own = [_nested(each, features) for each in plain[kind]]
    return tuple(own) if kind == "tuple" else own


def _leaf_path(leaf: Any, path: str) -> str:
    return path or str(getattr(leaf, "name", ""))


def _concatenate(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
