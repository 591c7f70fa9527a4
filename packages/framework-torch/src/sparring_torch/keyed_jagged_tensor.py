"""`KeyedJaggedTensor`: all sparse features of a batch in one flat tensor.

In its interface, which is TorchRec's, `keys` are feature names and `values` are ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from sparring.adapter import suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged_parts import JaggedParts
from sparring_torch.jagged_tensor import JaggedTensor, check_weights
from sparring_torch.jaggedness import Counts, lengths_of, values_from

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

    Args:
        keys: names of the features; each once.
        values: ``(n,)`` ids; a tensor or a list.
        weights: ``(n,)``, one for each id, or None.
        lengths: ``(features * stride,)``; a tensor or a list. Either these or `offsets`.
        offsets: the starts of all bags, with or without the end; a tensor or a list.
        stride: examples in the batch; None means the number of bags over that of features.

    Raises:
        InvalidArgumentError: wrong rank, a feature named twice, bags that do not share out evenly,
            negative lengths, lengths that do not add up, falling offsets, weights of another
            length.
    """

    __slots__ = (
        "_index_per_key",
        "_keys",
        "_length_per_key",
        "_stride",
    )

    def __init__(
        self,
        keys: Sequence[str],
        values: Tensor | Sequence[Any],
        weights: Tensor | Sequence[float] | None = None,
        lengths: Counts | None = None,
        offsets: Counts | None = None,
        stride: int | None = None,
    ) -> None:
        names = list(keys)
        checked = values_from(values, "values")
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
        self._lengths = lengths_of(
            checked.shape[0], lengths, offsets, num_keys=len(names), device=checked.device
        )
        self._offsets: Tensor | None = None
        self._stride = _stride(len(names), self._lengths.numel(), stride)
        self._length_per_key: list[int] | None = None

    @classmethod
    def _trusted(
        cls,
        keys: list[str],
        values: Tensor,
        weights: Tensor | None,
        lengths: Tensor,
        stride: int,
        length_per_key: list[int] | None = None,
    ) -> KeyedJaggedTensor:
        """Without checks, for parts that come out of a checked tensor."""
        self = cls.__new__(cls)
        self._keys, self._values, self._weights = keys, values, weights
        self._index_per_key = {name: index for index, name in enumerate(keys)}
        self._lengths, self._offsets, self._stride = lengths, None, stride
        self._length_per_key = length_per_key
        return self

    # -- other ways to make one -------------------------------------------------

    @staticmethod
    def from_lengths_sync(
        keys: Sequence[str],
        values: Tensor,
        lengths: Counts,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """From lengths, with everything derived computed now."""
        return KeyedJaggedTensor(keys, values, weights, lengths, stride=stride).sync()

    @staticmethod
    def from_offsets_sync(
        keys: Sequence[str],
        values: Tensor,
        offsets: Counts,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> KeyedJaggedTensor:
        """From offsets, with everything derived computed now."""
        return KeyedJaggedTensor(keys, values, weights, offsets=offsets, stride=stride).sync()

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
            _joined_weights([part.weights_or_none() for part in parts]),
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
        strides = sorted({part.stride() for part in kjt_list})
        if len(strides) > 1:
            raise InvalidArgumentError(
                f"concat: all must have the same stride, found {strides}; they are of different "
                "batches",
                strides=strides,
            )
        return KeyedJaggedTensor(
            [name for part in kjt_list for name in part._keys],
            torch.cat([part.values() for part in kjt_list]),
            _joined_weights([part.weights_or_none() for part in kjt_list]),
            torch.cat([part.lengths() for part in kjt_list]),
            stride=strides[0],
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
        return KeyedJaggedTensor._trusted(
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
        return KeyedJaggedTensor._trusted(
            [],
            kjt._values[:0],
            None if weights is None else weights[:0],
            kjt._lengths[:0],
            kjt._stride,
        )

    # -- parts --------------------------------------------------------------------

    def keys(self) -> list[str]:
        """Names of the features."""
        return self._keys

    def stride(self) -> int:
        """Examples in the batch."""
        return self._stride

    def stride_per_key(self) -> list[int]:
        return [self._stride] * len(self._keys)

    def length_per_key(self) -> list[int]:
        """Ids of each feature."""
        if self._length_per_key is None:
            per_key = self._lengths.view(len(self._keys), self._stride).sum(1)
            self._length_per_key = per_key.tolist()
        return self._length_per_key

    def length_per_key_or_none(self) -> list[int] | None:
        return self._length_per_key

    def offset_per_key(self) -> list[int]:
        """Where each feature's ids start, and the end."""
        return list(accumulate(self.length_per_key(), initial=0))

    def lengths_offset_per_key(self) -> list[int]:
        """Where each feature's lengths start, and the end."""
        return [index * self._stride for index in range(len(self._keys) + 1)]

    def index_per_key(self) -> dict[str, int]:
        """The place of each feature in `keys`."""
        return self._index_per_key

    def sync(self) -> KeyedJaggedTensor:
        """Computes what is derived; returns itself."""
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
                + suggestion(key, self._index_per_key),
                feature=key,
            )
        part = self._part(index, index + 1)
        return JaggedTensor._trusted(part._values, part._weights, part._lengths)

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
            indices_tensor: the same as a tensor; accepted for TorchRec's sake, not needed.

        Raises:
            InvalidArgumentError: a place out of range or repeated.
        """
        order = list(indices)
        wrong = [each for each in order if not 0 <= each < len(self._keys)]
        if wrong or len(set(order)) != len(order):
            raise InvalidArgumentError(
                f"permute: indices must be different places from 0 to {len(self._keys) - 1}, "
                f"found {order}"
            )
        parts = [self._part(index, index + 1) for index in order]
        if not parts:
            return KeyedJaggedTensor.empty_like(self)
        return KeyedJaggedTensor._trusted(
            [self._keys[index] for index in order],
            torch.cat([part._values for part in parts]),
            _joined_weights([part._weights for part in parts]),
            torch.cat([part._lengths for part in parts]),
            self._stride,
            [self.length_per_key()[index] for index in order],
        )

    def flatten_lengths(self) -> KeyedJaggedTensor:
        """The same; lengths are always flat here."""
        return self

    def _part(self, begin: int, end: int) -> KeyedJaggedTensor:
        per_key = self.length_per_key()
        start = sum(per_key[:begin])
        stop = start + sum(per_key[begin:end])
        weights = self._weights
        return KeyedJaggedTensor._trusted(
            self._keys[begin:end],
            self._values[start:stop],
            None if weights is None else weights[start:stop],
            self._lengths[begin * self._stride : end * self._stride],
            self._stride,
            per_key[begin:end],
        )

    # -- moving -----------------------------------------------------------------------

    def to(
        self,
        device: torch.device | str,
        non_blocking: bool = False,
        dtype: torch.dtype | None = None,
    ) -> KeyedJaggedTensor:
        """The same on another device; `dtype`, if given, is for the weights."""
        weights = self._weights
        return KeyedJaggedTensor._trusted(
            self._keys,
            self._values.to(device, non_blocking=non_blocking),
            None
            if weights is None
            else weights.to(device=device, dtype=dtype, non_blocking=non_blocking),
            self._lengths.to(device, non_blocking=non_blocking),
            self._stride,
            self._length_per_key,
        )

    def pin_memory(self) -> KeyedJaggedTensor:
        """The same in page-locked memory, from where a copy to a GPU need not wait."""
        weights = self._weights
        return KeyedJaggedTensor._trusted(
            self._keys,
            self._values.pin_memory(),
            None if weights is None else weights.pin_memory(),
            self._lengths.pin_memory(),
            self._stride,
            self._length_per_key,
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of all parts until `stream` has done with it."""
        for part in (self._values, self._weights, self._lengths, self._offsets):
            if part is not None:
                part.record_stream(stream)

    def __repr__(self) -> str:
        features = ",\n  ".join(f"{name!r}: {self[name]!r}" for name in self._keys)
        return f"KeyedJaggedTensor({{\n  {features}\n}}, stride={self._stride})"


def _stride(num_keys: int, num_bags: int, given: int | None) -> int:
    if num_keys == 0:
        if num_bags:
            raise InvalidArgumentError(
                f"a KeyedJaggedTensor without features has no bags, found {num_bags}; name the "
                "features in keys",
                num_bags=num_bags,
            )
        return given or 0
    if num_bags % num_keys or (given is not None and given * num_keys != num_bags):
        wanted = f"{given} for each" if given is not None else "as many for each"
        raise InvalidArgumentError(
            f"{num_bags} bags do not share out to {num_keys} features, {wanted}; give one length "
            "for each feature and example",
            num_bags=num_bags,
            num_keys=num_keys,
            stride=given,
        )
    return num_bags // num_keys


def _joined_weights(weights: Sequence[Tensor | None]) -> Tensor | None:
    given = [each for each in weights if each is not None]
    if not given:
        return None
    if len(given) != len(weights):
        raise InvalidArgumentError(
            f"all parts must have weights or none, found weights on {len(given)} of "
            f"{len(weights)}; give the others weights of one"
        )
    return torch.cat(given)


def _leaves(batch: KeyedJaggedTensor) -> tuple[list[Any], list[str]]:
    return [batch._values, batch._weights, batch._lengths], batch._keys


def _named_leaves(batch: KeyedJaggedTensor) -> tuple[list[tuple[Any, Any]], list[str]]:
    leaves, keys = _leaves(batch)
    names: Any = map(torch.utils._pytree.MappingKey, ("values", "weights", "lengths"))
    return list(zip(names, leaves, strict=True)), keys


def _from_leaves(leaves: Iterable[Any], keys: list[str]) -> KeyedJaggedTensor:
    values, weights, lengths = leaves
    # Not always tensors: torch maps trees of them to trees of names and the like.
    num_bags = lengths.shape[0] if isinstance(lengths, Tensor) else 0
    return KeyedJaggedTensor._trusted(keys, values, weights, lengths, num_bags // max(1, len(keys)))


# So that `torch.export` takes batches as inputs, and its programs are loaded with `weights_only`.
torch.utils._pytree.register_pytree_node(
    KeyedJaggedTensor,
    _leaves,
    _from_leaves,
    flatten_with_keys_fn=_named_leaves,
    serialized_type_name="sparring_torch.KeyedJaggedTensor",
)
torch.serialization.add_safe_globals([KeyedJaggedTensor])
