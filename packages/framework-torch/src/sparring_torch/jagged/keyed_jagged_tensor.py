"""`KeyedJaggedTensor`: all sparse features of a batch in one flat tensor.

In its interface, which is TorchRec's, `keys` are feature names and `values` are ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged import keyed_parts
from sparring_torch.jagged.jagged_parts import JaggedParts
from sparring_torch.jagged.jagged_tensor import JaggedTensor, check_weights
from sparring_torch.jagged.jaggedness import Counts, check_values, find_lengths, to_values

__all__ = ["KeyedJaggedTensor"]


class KeyedJaggedTensor(JaggedParts):
    """Several features, each with a bag of ids for each example of the batch.

    Two features over a batch of two examples::

                           example 0      example 1
        "user_features"    [11, 12]       [21, 22, 23]
        "item_features"    [101]          [102, 201]

    are stored feature after feature, and within a feature example after example::

        keys      "user_features"       | "item_features"
        values    11  12 | 21  22  23   | 101 | 102  201       (n,)
        lengths   2      | 3            | 1   | 2              (features * stride,)
        offsets   0        2              5     6         8    (features * stride + 1,)
        stride    2                                            examples in the batch

    `offset_per_key` is ``[0, 5, 8]``: where each feature's values start, and the end.

    Where many examples share the ids of a feature, as those of one user do, each bag may be given
    once: `stride_per_key_per_rank` says how many bags a feature has, and `inverse_indices` which of
    them is that of each example.

    Args:
        keys: names of the features; each once.
        values: ``(n,)`` ids; a tensor or a list.
        weights: ``(n,)``, one for each id, or None.
        lengths: ``(features * stride,)``; a tensor or a list. Either these or `offsets`.
        offsets: the starts of all bags, with or without the end; a tensor or a list.
        stride: examples in the batch; None means the number of bags over that of features.
        stride_per_key_per_rank: in place of `stride`: bags of each feature, one list a feature,
            whose numbers are added up.
        inverse_indices: features, and ``(features, examples)`` int64: which bag of a feature is
            that of an example. Collections that pool need them if features differ in stride.

    Raises:
        InvalidArgumentError: wrong rank, a feature named twice, bags that do not share out evenly,
            negative lengths, lengths that do not add up, falling offsets, weights of another
            length, a feature without inverse indices.
    """

    __slots__ = (
        "_index_per_key",
        "_inverse",
        "_keys",
        "_length_per_key",
        "_stride",
        "_strides",
    )

    _inverse: Tensor | None
    """``(features, stride)``, in the order of the features."""
    _strides: list[int] | None
    """Bags of each feature; None where each has `stride`."""

    def __init__(
        self,
        keys: Sequence[str],
        values: Tensor | Sequence[Any],
        weights: Tensor | Sequence[float] | None = None,
        lengths: Counts | None = None,
        offsets: Counts | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | Tensor | None = None,
        inverse_indices: tuple[Sequence[str], Tensor] | None = None,
    ) -> None:
        names = list(keys)
        checked = to_values(values, "values")
        if checked.dim() != 1:
            raise InvalidArgumentError(
                f"values of a KeyedJaggedTensor must have one dimension, found shape "
                f"{tuple(checked.shape)}; flatten them, feature after feature",
                shape=tuple(checked.shape),
            )
        self._keys = names
        self._index_per_key = dict(zip(names, range(len(names)), strict=True))
        if len(self._index_per_key) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgumentError(
                f"feature {twice!r} is named more than once in keys {names}; join its values "
                "into one feature",
                feature=twice,
            )
        self._values = checked
        self._weights = None if weights is None else check_weights(weights, checked)
        self._strides = None
        if stride_per_key_per_rank is not None:
            self._strides = [sum(map(int, each)) for each in stride_per_key_per_rank]
        num_keys = 1 if self._strides else len(names)
        self._lengths = find_lengths(
            checked.shape[0], lengths, offsets, num_keys=num_keys, device=checked.device
        )
        self._offsets: Tensor | None = None
        self._inverse = (
            None
            if inverse_indices is None
            else keyed_parts.arrange_inverse(names, *inverse_indices)
        )
        if self._strides is None:
            self._stride = keyed_parts.find_shared_stride(len(names), self._lengths.numel(), stride)
        else:
            keyed_parts.check_strides(names, self._strides, self._lengths.numel())
            self._stride = max(self._strides, default=0)
        if self._inverse is not None:
            self._strides = self._strides or self.stride_per_key()
            self._stride = self._inverse.shape[1]
        elif self._strides == [self._stride] * len(names):
            self._strides = None
        self._length_per_key: list[int] | None = None

    @classmethod
    def _from_valid(
        cls,
        keys: list[str],
        values: Tensor,
        weights: Tensor | None,
        lengths: Tensor,
        stride: int,
        length_per_key: list[int] | None = None,
        strides: list[int] | None = None,
        inverse: Tensor | None = None,
    ) -> KeyedJaggedTensor:
        """Without checks, for parts that come out of a checked tensor."""
        self = cls.__new__(cls)
        self._keys, self._values, self._weights = keys, values, weights
        self._index_per_key = {name: index for index, name in enumerate(keys)}
        self._lengths, self._offsets, self._stride = lengths, None, stride
        self._length_per_key = length_per_key
        self._strides, self._inverse = strides, inverse
        return self

    # -- other ways to make one -------------------------------------------------

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: Tensor,
        lengths: Counts,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | Tensor | None = None,
        inverse_indices: tuple[Sequence[str], Tensor] | None = None,
    ) -> KeyedJaggedTensor:
        """From lengths, with everything derived computed now."""
        return KeyedJaggedTensor(
            keys, values, weights, lengths, None, stride, stride_per_key_per_rank, inverse_indices
        ).sync()

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: Tensor,
        offsets: Counts,
        weights: Tensor | None = None,
        stride: int | None = None,
        stride_per_key_per_rank: Sequence[Sequence[int]] | Tensor | None = None,
        inverse_indices: tuple[Sequence[str], Tensor] | None = None,
    ) -> KeyedJaggedTensor:
        """From offsets, with everything derived computed now."""
        return KeyedJaggedTensor(
            keys, values, weights, None, offsets, stride, stride_per_key_per_rank, inverse_indices
        ).sync()

    @staticmethod
    def from_jt_dict(jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """From one `JaggedTensor` for each feature, all with the same number of bags.

        Raises:
            InvalidArgumentError: none given, uneven numbers of bags, weights on some only.
        """
        if not jt_dict:
            raise InvalidArgumentError(
                "from_jt_dict needs at least one feature, found none; use KeyedJaggedTensor.empty()"
            )
        strides = {name: part.lengths().numel() for name, part in jt_dict.items()}
        if len(set(strides.values())) > 1:
            raise InvalidArgumentError(
                f"all features must have the same number of bags, found {strides}; add empty bags",
                strides=strides,
            )
        parts = list(jt_dict.values())
        return KeyedJaggedTensor(
            list(jt_dict),
            torch.cat([part.values() for part in parts]),
            keyed_parts.concatenate_parts([part.weights_or_none() for part in parts], "weights"),
            torch.cat([part.lengths() for part in parts]),
            stride=next(iter(strides.values())),
        )

    @staticmethod
    def concat(kjt_list: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
        """The features of all, in order. They must have one stride and no name in common.

        Raises:
            InvalidArgumentError: none given, different strides, weights on some only.
        """
        if not kjt_list:
            raise InvalidArgumentError("concat needs at least one KeyedJaggedTensor, found none")
        is_variable = any(part._strides is not None for part in kjt_list)
        has_inverse = all(part._inverse is not None for part in kjt_list)
        strides = sorted({part.stride() for part in kjt_list})
        if len(strides) > 1 and (has_inverse or not is_variable):
            raise InvalidArgumentError(
                f"concat: all must have the same stride, found {strides}; they are of different "
                "batches",
                strides=strides,
            )
        keys = [name for part in kjt_list for name in part._keys]
        each = [[stride] for part in kjt_list for stride in part.stride_per_key()]
        inverse = keyed_parts.concatenate_parts(
            [part._inverse for part in kjt_list], "inverse_indices"
        )
        return KeyedJaggedTensor(
            keys,
            torch.cat([part.values() for part in kjt_list]),
            keyed_parts.concatenate_parts([part.weights_or_none() for part in kjt_list], "weights"),
            torch.cat([part.lengths() for part in kjt_list]),
            stride=strides[0],
            stride_per_key_per_rank=each if is_variable else None,
            inverse_indices=None if inverse is None else (keys, inverse),
        )

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> KeyedJaggedTensor:
        """No features, no examples."""
        return KeyedJaggedTensor._from_valid(
            [],
            torch.empty(0, dtype=values_dtype, device=device),
            torch.empty(0, dtype=weights_dtype, device=device) if is_weighted else None,
            torch.empty(0, dtype=lengths_dtype, device=device),
            0,
        )

    @staticmethod
    def empty_like(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """No features, with the dtypes, the device and the stride of `kjt`."""
        weights = kjt._weights
        weights = None if weights is None else weights[:0]
        return KeyedJaggedTensor._from_valid(
            [], kjt._values[:0], weights, kjt._lengths[:0], kjt._stride
        )

    # -- parts --------------------------------------------------------------------

    def keys(self) -> list[str]:
        """Names of the features."""
        return self._keys

    def stride(self) -> int:
        """Examples in the batch."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        """Bags of each feature."""
        return list(self._strides or [self._stride] * len(self._keys))

    def stride_per_key_per_rank(self) -> list[list[int]]:
        return [[stride] for stride in self.stride_per_key()]

    def variable_stride_per_key(self) -> bool:
        """Whether features differ in their number of bags, or share bags between examples."""
        return self._strides is not None

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        """Features, and ``(features, examples)``: which bag is that of an example."""
        return None if self._inverse is None else (self._keys, self._inverse)

    def inverse_indices(self) -> tuple[list[str], Tensor]:
        """Features, and ``(features, examples)``: which bag is that of an example.

        Raises:
            InvalidArgumentError: there are none.
        """
        if self._inverse is None:
            raise InvalidArgumentError(
                f"features have {self.stride_per_key()} bags and no inverse_indices, so no one "
                "knows which bag is that of an example; give inverse_indices=(keys, (features, "
                "examples))"
            )
        return self._keys, self._inverse

    def with_even_stride(self) -> KeyedJaggedTensor:
        """The same bags, with as many for each feature: empty ones are added at the end."""
        if self._strides is None:
            return self
        stride = max(self._strides, default=0)
        lengths = self._lengths.new_zeros(len(self._keys), stride)
        for row, own in zip(lengths, torch.split(self._lengths, self._strides), strict=True):
            row[: len(own)] = own
        return KeyedJaggedTensor._from_valid(
            self._keys, self._values, self._weights, lengths.flatten(), stride, self._length_per_key
        )

    def length_per_key(self) -> list[int]:
        """Ids of each feature; raises if the batch is on the device ``meta``."""
        if self._length_per_key is None:
            check_values(self._lengths, "length_per_key")
            even = self.with_even_stride()
            self._length_per_key = even._lengths.view(len(self._keys), even._stride).sum(1).tolist()
        return self._length_per_key

    def length_per_key_or_none(self) -> list[int] | None:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Where each feature's ids start, and the end."""
        return list(accumulate(self.length_per_key(), initial=0))

    def lengths_offset_per_key(self) -> list[int]:
        """Where each feature's lengths start, and the end."""
        return list(accumulate(self.stride_per_key(), initial=0))

    def index_per_key(self) -> dict[str, int]:
        """The place of each feature in `keys`."""
        return self._index_per_key

    def sync(self) -> KeyedJaggedTensor:
        """Computes what is derived; returns itself."""
        if not self._lengths.is_meta:
            self.length_per_key()
        self.offsets()
        return self

    def unsync(self) -> KeyedJaggedTensor:
        """Forgets what was derived; returns itself."""
        self._length_per_key = self._offsets = None
        return self

    def __getitem__(self, key: str) -> JaggedTensor:
        """One feature: views, no copies.

        Raises:
            InvalidArgumentError: no such feature.
        """
        index = self._index_per_key.get(key)
        if index is None:
            raise InvalidArgumentError(
                f"no feature {key!r} in this KeyedJaggedTensor; "
                + format_suggestion(key, self._index_per_key),
                feature=key,
            )
        part = self._part(index, index + 1)
        return JaggedTensor._from_valid(part._values, part._weights, part._lengths)

    def __contains__(self, key: object) -> bool:
        return key in self._index_per_key

    def __len__(self) -> int:
        return len(self._keys)

    def to_dict(self) -> dict[str, JaggedTensor]:
        """All features."""
        return {name: self[name] for name in self._keys}

    # -- rearranging ------------------------------------------------------------------

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Runs of consecutive features: views, no copies.

        Args:
            segments: features in each part; they add up to all.

        Raises:
            InvalidArgumentError: they do not add up.
        """
        if sum(segments) != len(self._keys) or any(each < 0 for each in segments):
            raise InvalidArgumentError(
                f"split: segments must add up to the {len(self._keys)} features, found "
                f"{list(segments)}"
            )
        ends = list(accumulate(segments, initial=0))
        return [self._part(begin, end) for begin, end in pairwise(ends)]

    def permute(
        self,
        indices: Sequence[int],
        indices_tensor: Tensor | None = None,
    ) -> KeyedJaggedTensor:
        """The features at `indices`, in that order; the rest is left out.

        Args:
            indices: places in `keys`, each once.
            indices_tensor: the same as a tensor, as TorchRec has it; not needed.

        Raises:
            InvalidArgumentError: a place out of range or repeated, or another `indices_tensor`.
        """
        order = list(indices)
        keyed_parts.check_order(order, len(self._keys), indices_tensor)
        parts = [self._part(index, index + 1) for index in order]
        if not parts:
            return KeyedJaggedTensor.empty_like(self)
        return KeyedJaggedTensor._from_valid(
            [self._keys[index] for index in order],
            torch.cat([part._values for part in parts]),
            keyed_parts.concatenate_parts([part._weights for part in parts], "weights"),
            torch.cat([part._lengths for part in parts]),
            self._stride,
            [self.length_per_key()[index] for index in order],
            None if self._strides is None else [self._strides[index] for index in order],
            None if self._inverse is None else self._inverse[order],
        )

    def flatten_lengths(self) -> KeyedJaggedTensor:
        return self

    def _part(self, begin: int, end: int) -> KeyedJaggedTensor:
        per_key = self.length_per_key()
        start = sum(per_key[:begin])
        stop = start + sum(per_key[begin:end])
        weights, strides, inverse = self._weights, self._strides, self._inverse
        bags = slice(begin * self._stride, end * self._stride)
        if strides is not None:
            bags = slice(sum(strides[:begin]), sum(strides[:end]))
        return KeyedJaggedTensor._from_valid(
            self._keys[begin:end],
            self._values[start:stop],
            None if weights is None else weights[start:stop],
            self._lengths[bags],
            self._stride,
            per_key[begin:end],
            None if strides is None else strides[begin:end],
            None if inverse is None else inverse[begin:end],
        )

    # -- moving -----------------------------------------------------------------------

    def to(
        self,
        device: torch.device | str,
        non_blocking: bool = False,
        dtype: torch.dtype | None = None,
    ) -> KeyedJaggedTensor:
        """The same on another device; `dtype`, if given, is for the weights."""
        moved = self._map(lambda part: part.to(device, non_blocking=non_blocking))
        if dtype is not None and moved._weights is not None:
            moved._weights = moved._weights.to(dtype)
        return moved

    def pin_memory(self) -> KeyedJaggedTensor:
        """The same in page-locked memory, from where a copy to a GPU need not wait."""
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> KeyedJaggedTensor:
        """The same with every tensor moved."""
        return KeyedJaggedTensor._from_valid(
            self._keys,
            move(self._values),
            None if self._weights is None else move(self._weights),
            move(self._lengths),
            self._stride,
            self._length_per_key,
            self._strides,
            None if self._inverse is None else move(self._inverse),
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of all parts until `stream` has done with it."""
        for part in (self._values, self._weights, self._lengths, self._offsets, self._inverse):
            if part is not None:
                part.record_stream(stream)

    def __repr__(self) -> str:
        if self._lengths.is_meta:
            return f"KeyedJaggedTensor({self._keys}, stride={self._stride}, device='meta')"
        features = ",\n  ".join(f"{name!r}: {self[name]!r}" for name in self._keys)
        return f"KeyedJaggedTensor({{\n  {features}\n}}, stride={self._stride})"


keyed_parts.register_batch(KeyedJaggedTensor)
