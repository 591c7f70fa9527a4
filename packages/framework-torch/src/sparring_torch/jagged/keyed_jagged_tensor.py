"""`KeyedJaggedTensor`: all sparse features of a batch in one flat tensor.

The interface is TorchRec's: `keys` are names of features and `values` are ids. The file is long because
one class contains this whole interface.
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
    """Several features of a batch, with one bag of ids per feature and example.

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

    `offset_per_key` is ``[0, 5, 8]``: the start of each feature's values, and the end.

    If many examples share the ids of a feature, for example those of one user, each distinct bag can
    be given once: `stride_per_key_per_rank` sets the number of bags per feature, and
    `inverse_indices` the bag of each example.

    Args:
        keys: distinct names of the features.
        values: ``(n,)`` ids; a tensor or a list.
        weights: ``(n,)`` weights of the ids, or None.
        lengths: ``(features * stride,)``; a tensor or a list. Either these or `offsets` are required.
        offsets: the starts of all bags, with or without the end; a tensor or a list.
        stride: number of examples; None means the number of bags per feature.
        stride_per_key_per_rank: replaces `stride`: one list per feature, whose sum is the number of
            bags of the feature.
        inverse_indices: names of features, and ``(features, examples)`` int64 numbers of bags.
            Collections that pool require it if features have different numbers of bags.

    Raises:
        InvalidArgumentError: a feature is named twice, lengths or offsets are invalid or do not match
            the values or features, weights have another length, or a feature has no inverse indices.

    Examples:
        >>> import torch
        >>> from sparring_torch import KeyedJaggedTensor
        >>> batch = KeyedJaggedTensor(
        ...     ["user_features", "item_features"],
        ...     torch.tensor([11, 12, 21, 22, 23, 101, 102, 201]),
        ...     lengths=torch.tensor([2, 3, 1, 2]),
        ... )
        >>> batch.stride(), batch.offset_per_key()
        (2, [0, 5, 8])
        >>> batch["item_features"].to_dense()
        [tensor([101]), tensor([102, 201])]
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
    """``(features, stride)`` numbers of bags, in the order of the features."""
    _strides: list[int] | None
    """Number of bags per feature; None if each feature has `stride` bags."""

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
                f"keys: found feature {twice!r} more than once in {names}; put its values into one "
                "feature",
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
        """Creates a tensor from valid parts without checks."""
        self = cls.__new__(cls)
        self._keys, self._values, self._weights = keys, values, weights
        self._index_per_key = {name: index for index, name in enumerate(keys)}
        self._lengths, self._offsets, self._stride = lengths, None, stride
        self._length_per_key = length_per_key
        self._strides, self._inverse = strides, inverse
        return self

    # -- other constructors -----------------------------------------------------

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
        """Creates a tensor from lengths and computes all derived values.

        `keys`, `values`, `weights`, `stride`, `stride_per_key_per_rank` and `inverse_indices` are
        those of `KeyedJaggedTensor`.

        Args:
            lengths: ``(features * stride,)``.

        Raises:
            InvalidArgumentError: see `KeyedJaggedTensor`.
        """
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
        """Creates a tensor from offsets and computes all derived values.

        `keys`, `values`, `weights`, `stride`, `stride_per_key_per_rank` and `inverse_indices` are
        those of `KeyedJaggedTensor`.

        Args:
            offsets: the starts of all bags, with or without the end.

        Raises:
            InvalidArgumentError: see `KeyedJaggedTensor`.
        """
        return KeyedJaggedTensor(
            keys, values, weights, None, offsets, stride, stride_per_key_per_rank, inverse_indices
        ).sync()

    @staticmethod
    def from_jt_dict(jt_dict: Mapping[str, JaggedTensor]) -> KeyedJaggedTensor:
        """Creates a tensor from one `JaggedTensor` per feature, with equal numbers of bags.

        Args:
            jt_dict: feature → its bags, one bag per example.

        Raises:
            InvalidArgumentError: there are no features, numbers of bags differ, or only some features
                have weights.
        """
        if not jt_dict:
            raise InvalidArgumentError(
                "from_jt_dict: found no features; use KeyedJaggedTensor.empty() instead"
            )
        strides = {name: part.lengths().numel() for name, part in jt_dict.items()}
        if len(set(strides.values())) > 1:
            raise InvalidArgumentError(
                f"from_jt_dict: features must have equal numbers of bags, found {strides}; add empty "
                "bags",
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
        """Returns the features of all tensors, in order.

        Args:
            kjt_list: tensors with different features of the same examples.

        Raises:
            InvalidArgumentError: there are no tensors, a feature is repeated, strides differ, or only
                some tensors have weights.
        """
        if not kjt_list:
            raise InvalidArgumentError(
                "concat: found no tensors; give at least one KeyedJaggedTensor"
            )
        is_variable = any(part._strides is not None for part in kjt_list)
        has_inverse = all(part._inverse is not None for part in kjt_list)
        strides = sorted({part.stride() for part in kjt_list})
        if len(strides) > 1 and (has_inverse or not is_variable):
            raise InvalidArgumentError(
                f"concat: all tensors must have the same stride, found {strides}; give features of "
                "one batch",
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
        """Returns a tensor without features and examples.

        Args:
            is_weighted: whether the tensor has weights.
            device: device of all parts.
            values_dtype: dtype of the values; None means torch's default.
            weights_dtype: dtype of the weights; None means torch's default.
            lengths_dtype: dtype of the lengths.
        """
        return KeyedJaggedTensor._from_valid(
            [],
            torch.empty(0, dtype=values_dtype, device=device),
            torch.empty(0, dtype=weights_dtype, device=device) if is_weighted else None,
            torch.empty(0, dtype=lengths_dtype, device=device),
            0,
        )

    @staticmethod
    def empty_like(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Returns a tensor without features, with the dtypes, device and stride of `kjt`.

        Args:
            kjt: the tensor whose properties the result has.
        """
        weights = kjt._weights
        weights = None if weights is None else weights[:0]
        return KeyedJaggedTensor._from_valid(
            [], kjt._values[:0], weights, kjt._lengths[:0], kjt._stride
        )

    # -- parts --------------------------------------------------------------------

    def keys(self) -> list[str]:
        """Returns the names of the features."""
        return self._keys

    def stride(self) -> int:
        """Returns the number of examples in the batch."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        """Returns the number of bags per feature."""
        return list(self._strides or [self._stride] * len(self._keys))

    def stride_per_key_per_rank(self) -> list[list[int]]:
        return [[stride] for stride in self.stride_per_key()]

    def variable_stride_per_key(self) -> bool:
        """Returns whether features differ in their number of bags, or examples share bags."""
        return self._strides is not None

    def inverse_indices_or_none(self) -> tuple[list[str], Tensor] | None:
        """Returns names of features and the bag of each example ``(features, examples)``."""
        return None if self._inverse is None else (self._keys, self._inverse)

    def inverse_indices(self) -> tuple[list[str], Tensor]:
        """Returns names of features and the bag of each example ``(features, examples)``.

        Raises:
            InvalidArgumentError: the tensor has no inverse indices.
        """
        if self._inverse is None:
            raise InvalidArgumentError(
                f"inverse_indices: found none for features with {self.stride_per_key()} bags, so the "
                "bags of the examples are unknown; give inverse_indices=(keys, (features, examples)) "
                "to the KeyedJaggedTensor"
            )
        return self._keys, self._inverse

    def with_even_stride(self) -> KeyedJaggedTensor:
        """Returns a tensor with an equal number of bags per feature; empty bags are appended."""
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
        """Returns the number of ids per feature; raises if the batch is on the device ``meta``."""
        if self._length_per_key is None:
            check_values(self._lengths, "length_per_key")
            even = self.with_even_stride()
            self._length_per_key = even._lengths.view(len(self._keys), even._stride).sum(1).tolist()
        return self._length_per_key

    def length_per_key_or_none(self) -> list[int] | None:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Returns the start of each feature's ids, and the end."""
        return list(accumulate(self.length_per_key(), initial=0))

    def lengths_offset_per_key(self) -> list[int]:
        """Returns the start of each feature's lengths, and the end."""
        return list(accumulate(self.stride_per_key(), initial=0))

    def index_per_key(self) -> dict[str, int]:
        """Returns the position of each feature in `keys`."""
        return self._index_per_key

    def sync(self) -> KeyedJaggedTensor:
        """Computes derived values; returns itself."""
        if not self._lengths.is_meta:
            self.length_per_key()
        self.offsets()
        return self

    def unsync(self) -> KeyedJaggedTensor:
        """Drops derived values; returns itself."""
        self._length_per_key = self._offsets = None
        return self

    def __getitem__(self, key: str) -> JaggedTensor:
        """Returns one feature without copying.

        Raises:
            InvalidArgumentError: there is no such feature.
        """
        index = self._index_per_key.get(key)
        if index is None:
            raise InvalidArgumentError(
                f"found no feature {key!r} in this KeyedJaggedTensor; "
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
        """Returns all features without copying."""
        return {name: self[name] for name in self._keys}

    # -- rearranging ------------------------------------------------------------------

    def split(self, segments: Sequence[int]) -> list[KeyedJaggedTensor]:
        """Splits the tensor into runs of consecutive features without copying.

        Args:
            segments: number of features per part; the sum is the number of features.

        Raises:
            InvalidArgumentError: `segments` has the wrong sum or contains a negative number.
        """
        if sum(segments) != len(self._keys) or any(each < 0 for each in segments):
            raise InvalidArgumentError(
                f"split: segments must sum to the {len(self._keys)} features, found {list(segments)}"
            )
        ends = list(accumulate(segments, initial=0))
        return [self._part(begin, end) for begin, end in pairwise(ends)]

    def permute(
        self,
        indices: Sequence[int],
        indices_tensor: Tensor | None = None,
    ) -> KeyedJaggedTensor:
        """Returns a tensor with the features at `indices`, in that order.

        Args:
            indices: distinct positions in `keys`.
            indices_tensor: the same as a tensor, for compatibility with TorchRec.

        Raises:
            InvalidArgumentError: a position is out of range or repeated, or `indices_tensor` differs.
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
        """Returns the batch on another device.

        Args:
            device: the device.
            non_blocking: whether copies from page-locked memory are asynchronous, see
                `torch.Tensor.to`.
            dtype: dtype of the weights; None leaves it unchanged.
        """
        moved = self._map(lambda part: part.to(device, non_blocking=non_blocking))
        if dtype is not None and moved._weights is not None:
            moved._weights = moved._weights.to(dtype)
        return moved

    def pin_memory(self) -> KeyedJaggedTensor:
        """Returns the batch in page-locked memory, from which copies to a GPU are asynchronous."""
        return self._map(Tensor.pin_memory)

    def _map(self, move: Callable[[Tensor], Tensor]) -> KeyedJaggedTensor:
        """Returns the batch with `move` applied to every tensor."""
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
        """Keeps the memory of all parts allocated until `stream` has used it.

        Args:
            stream: the CUDA stream that uses the memory.
        """
        for part in (self._values, self._weights, self._lengths, self._offsets, self._inverse):
            if part is not None:
                part.record_stream(stream)

    def __repr__(self) -> str:
        if self._lengths.is_meta:
            return f"KeyedJaggedTensor({self._keys}, stride={self._stride}, device='meta')"
        features = ",\n  ".join(f"{name!r}: {self[name]!r}" for name in self._keys)
        return f"KeyedJaggedTensor({{\n  {features}\n}}, stride={self._stride})"


keyed_parts.register_batch(KeyedJaggedTensor)
