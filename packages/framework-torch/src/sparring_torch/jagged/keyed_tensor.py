"""`KeyedTensor`: pooled embeddings of several features, side by side in one tensor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_parts import register_tree

__all__ = ["KeyedTensor"]


class KeyedTensor:
    """Dense tensors of several features, concatenated along one dimension.

    Two features, of dim 3 and dim 2, over a batch of two examples::

        keys             "user"      "item"
        length_per_key   3           2
        values           u0 u0 u0    i0 i0      example 0      (batch, 3 + 2)
                         u1 u1 u1    i1 i1      example 1

    ``keyed["item"]`` is the ``(batch, 2)`` view on the right.

    Args:
        keys: distinct names of the features.
        length_per_key: number of elements of each feature along `key_dim`.
        values: ``(batch, sum of length_per_key)`` if `key_dim` is 1.
        key_dim: the dimension along which features are concatenated.

    Raises:
        InvalidArgumentError: the numbers of names and lengths differ, a feature is named twice, or
            the lengths do not sum to the size of the values.

    Examples:
        >>> import torch
        >>> from sparring_torch import KeyedTensor
        >>> keyed = KeyedTensor(["user", "item"], [3, 2], torch.zeros(2, 5))
        >>> keyed["item"].shape
        torch.Size([2, 2])
    """

    __slots__ = ("_index_per_key", "_key_dim", "_keys", "_length_per_key", "_offsets", "_values")

    def __init__(
        self,
        keys: Sequence[str],
        length_per_key: Sequence[int],
        values: Tensor,
        key_dim: int = 1,
    ) -> None:
        names, lengths = list(keys), [int(each) for each in length_per_key]
        if len(names) != len(lengths) or any(each < 0 for each in lengths):
            raise InvalidArgumentError(
                f"length_per_key must have one number per feature, found {lengths} for {names}"
            )
        if not -values.dim() <= key_dim < values.dim() or sum(lengths) != values.shape[key_dim]:
            raise InvalidArgumentError(
                f"length_per_key must sum to the size of dimension {key_dim} of values, which have "
                f"shape {tuple(values.shape)}, found {sum(lengths)}",
                shape=tuple(values.shape),
            )
        self._fill(names, lengths, values, key_dim)
        if len(self._index_per_key) != len(names):
            raise InvalidArgumentError(f"keys must name each feature once, found {names}")

    @classmethod
    def _from_valid(
        cls, keys: list[str], length_per_key: list[int], values: Tensor, key_dim: int = 1
    ) -> KeyedTensor:
        """Creates a tensor from valid parts without checks."""
        self = cls.__new__(cls)
        self._fill(keys, length_per_key, values, key_dim)
        return self

    def _fill(self, keys: list[str], lengths: list[int], values: Tensor, key_dim: int) -> None:
        self._keys, self._length_per_key = keys, lengths
        self._values, self._key_dim = values, key_dim
        self._offsets = list(accumulate(lengths, initial=0))
        self._index_per_key = dict(zip(keys, range(len(keys)), strict=True))

    @staticmethod
    def from_tensor_list(
        keys: Sequence[str], tensors: Sequence[Tensor], key_dim: int = 1, cat_dim: int = 1
    ) -> KeyedTensor:
        """Concatenates one tensor per feature.

        Args:
            keys: distinct names of the features.
            tensors: one tensor ``(batch, dim)`` per feature.
            key_dim: see `KeyedTensor`.
            cat_dim: dimension along which the tensors are concatenated; the same as `key_dim`.

        Raises:
            InvalidArgumentError: see `KeyedTensor`.
        """
        return KeyedTensor(
            keys,
            [tensor.shape[key_dim] for tensor in tensors],
            torch.cat(list(tensors), dim=cat_dim),
            key_dim,
        )

    def keys(self) -> list[str]:
        """Returns the names of the features."""
        return self._keys

    def values(self) -> Tensor:
        """Returns the values of all features, side by side."""
        return self._values

    def key_dim(self) -> int:
        return self._key_dim

    def device(self) -> torch.device:
        return self._values.device

    def length_per_key(self) -> list[int]:
        """Returns the number of elements of each feature along `key_dim`."""
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Returns the start of each feature along `key_dim`, and the end."""
        return self._offsets

    def __getitem__(self, key: str) -> Tensor:
        """Returns one feature ``(batch, dim)`` without copying.

        Raises:
            InvalidArgumentError: there is no such feature.
        """
        index = self._index_per_key.get(key)
        if index is None:
            raise InvalidArgumentError(
                f"found no feature {key!r} in this KeyedTensor; "
                + format_suggestion(key, self._keys),
                feature=key,
            )
        return self._values.narrow(self._key_dim, self._offsets[index], self._length_per_key[index])

    def __contains__(self, key: object) -> bool:
        return key in self._index_per_key

    def to_dict(self) -> dict[str, Tensor]:
        """Returns all features without copying."""
        parts = torch.split(self._values, self._length_per_key, dim=self._key_dim)
        return dict(zip(self._keys, parts, strict=True))

    @staticmethod
    def regroup(
        keyed_tensors: Sequence[KeyedTensor], groups: Sequence[Sequence[str]]
    ) -> list[Tensor]:
        """Returns one tensor per group, with the features of the group side by side.

        Args:
            keyed_tensors: tensors of the same batch.
            groups: names of the features of each group, in the order of the result.

        Raises:
            InvalidArgumentError: a feature is in none of `keyed_tensors`, or in several.
        """
        holders: dict[str, list[KeyedTensor]] = {}
        for tensor in keyed_tensors:
            for name in tensor._keys:
                holders.setdefault(name, []).append(tensor)
        return [
            torch.cat(
                [_find_holder(holders, name)[name] for name in group],
                dim=keyed_tensors[0].key_dim(),
            )
            for group in groups
        ]

    @staticmethod
    def regroup_as_dict(
        keyed_tensors: Sequence[KeyedTensor],
        groups: Sequence[Sequence[str]],
        keys: Sequence[str],
    ) -> dict[str, Tensor]:
        """Same as `regroup`, with a name per group.

        `keyed_tensors` and `groups` are the arguments of `regroup`.

        Args:
            keys: one name per group.

        Raises:
            InvalidArgumentError: the numbers of names and groups differ.
        """
        if len(keys) != len(groups):
            raise InvalidArgumentError(
                f"regroup_as_dict: found {len(keys)} names for {len(groups)} groups; give one name per "
                "group"
            )
        return dict(zip(keys, KeyedTensor.regroup(keyed_tensors, groups), strict=True))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> KeyedTensor:
        """Returns the tensor on another device.

        Args:
            device: the device.
            non_blocking: whether copies from page-locked memory are asynchronous, see
                `torch.Tensor.to`.
        """
        return KeyedTensor._from_valid(
            self._keys,
            self._length_per_key,
            self._values.to(device, non_blocking=non_blocking),
            self._key_dim,
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory allocated until `stream` has used it.

        Args:
            stream: the CUDA stream that uses the memory.
        """
        self._values.record_stream(stream)

    def __repr__(self) -> str:
        parts = ", ".join(f"{name!r}: {tuple(part.shape)}" for name, part in self.to_dict().items())
        return f"KeyedTensor({{{parts}}})"


def _find_holder(holders: dict[str, list[KeyedTensor]], name: str) -> KeyedTensor:
    found = holders.get(name, [])
    if len(found) > 1:
        raise InvalidArgumentError(
            f"regroup: feature {name!r} is ambiguous, because {len(found)} tensors contain it; give "
            f"one tensor per feature, or read the feature from its tensor: tensor[{name!r}]",
            feature=name,
        )
    if not found:
        raise InvalidArgumentError(
            f"regroup: found no feature {name!r}; " + format_suggestion(name, holders), feature=name
        )
    return found[0]


def _leaves(keyed: KeyedTensor) -> tuple[list[Any], list[Any]]:
    return [keyed._values], [keyed._keys, keyed._length_per_key, keyed._key_dim]


def _from_leaves(leaves: Iterable[Any], context: list[Any]) -> KeyedTensor:
    keys, length_per_key, key_dim = context
    (values,) = leaves
    return KeyedTensor._from_valid(keys, length_per_key, values, key_dim)


register_tree(KeyedTensor, _leaves, _from_leaves, ("values",))
