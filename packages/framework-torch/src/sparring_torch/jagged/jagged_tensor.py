"""`JaggedTensor`: one feature of a batch, with one bag of values per example."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jagged_parts import JaggedParts
from sparring_torch.jagged.jaggedness import Counts, find_lengths, to_values
from sparring_torch.jagged.keyed_parts import register_tree

__all__ = ["JaggedTensor", "check_weights"]


class JaggedTensor(JaggedParts):
    """A batch of bags of values, stored flat.

    The bags ``[101, 102]``, ``[201, 202, 203]``, ``[301]`` are::

        values    101  102 | 201  202  203 | 301         (n, …)
        lengths   2        | 3             | 1           (batch,)
        offsets   0          2               5       6   (batch + 1,)

    Args:
        values: ``(n, …)``: ids ``(n,)``, or embeddings ``(n, dim)``; a tensor or a list.
        weights: ``(n,)`` weights of the values, or None.
        lengths: ``(batch,)``; a tensor or a list. Either these or `offsets` are required.
        offsets: ``(batch,)`` starts or ``(batch + 1,)`` with the end; a tensor or a list.

    Raises:
        InvalidArgumentError: lengths or offsets are invalid or do not match the values, or weights
            have another length.

    Examples:
        >>> import torch
        >>> from sparring_torch import JaggedTensor
        >>> bags = JaggedTensor(torch.tensor([101, 102, 201]), lengths=torch.tensor([2, 1]))
        >>> bags.to_dense()
        [tensor([101, 102]), tensor([201])]
        >>> bags.to_padded_dense().tolist()
        [[101, 102], [201, 0]]
    """

    __slots__ = ()

    def __init__(
        self,
        values: Tensor | Sequence[Any],
        weights: Tensor | Sequence[float] | None = None,
        lengths: Counts | None = None,
        offsets: Counts | None = None,
    ) -> None:
        checked = to_values(values, "values")
        self._values = checked
        self._weights = check_weights(weights, checked)
        self._lengths = find_lengths(checked.shape[0], lengths, offsets, device=checked.device)
        self._offsets: Tensor | None = None

    @classmethod
    def _from_valid(
        cls, values: Tensor, weights: Tensor | None, lengths: Tensor, offsets: Tensor | None = None
    ) -> JaggedTensor:
        """Creates a tensor from valid parts without checks."""
        self = cls.__new__(cls)
        self._values, self._weights = values, weights
        self._lengths, self._offsets = lengths, offsets
        return self

    # -- other constructors -----------------------------------------------------

    @staticmethod
    def empty(
        is_weighted: bool = False,
        device: torch.device | None = None,
        values_dtype: torch.dtype | None = None,
        weights_dtype: torch.dtype | None = None,
        lengths_dtype: torch.dtype = torch.int32,
    ) -> JaggedTensor:
        """Returns a tensor without values and bags.

        Args:
            is_weighted: whether the tensor has weights.
            device: device of all parts.
            values_dtype: dtype of the values; None means torch's default.
            weights_dtype: dtype of the weights; None means torch's default.
            lengths_dtype: dtype of the lengths.
        """
        return JaggedTensor._from_valid(
            torch.empty(0, dtype=values_dtype, device=device),
            torch.empty(0, dtype=weights_dtype, device=device) if is_weighted else None,
            torch.empty(0, dtype=lengths_dtype, device=device),
        )

    @staticmethod
    def from_dense(
        values: Sequence[Tensor], weights: Sequence[Tensor] | None = None
    ) -> JaggedTensor:
        """Creates a tensor from one tensor ``(length, …)`` per bag.

        Args:
            values: one tensor per bag.
            weights: one tensor ``(length,)`` per bag, or None.

        Raises:
            InvalidArgumentError: there are no bags, or weights have other lengths.
        """
        if not len(values):
            raise InvalidArgumentError(
                "from_dense: found no bags; use JaggedTensor.empty() instead"
            )
        return JaggedTensor(
            torch.cat(list(values)),
            None if weights is None else torch.cat(list(weights)),
            lengths=torch.tensor([len(bag) for bag in values], dtype=torch.int32),
        )

    @staticmethod
    def from_dense_lengths(
        values: Tensor, lengths: Counts, weights: Tensor | None = None
    ) -> JaggedTensor:
        """Creates a tensor from the first `lengths` values of each padded bag.

        Args:
            values: ``(batch, longest, …)``.
            lengths: ``(batch,)``.
            weights: ``(batch, longest)``, or None.

        Raises:
            InvalidArgumentError: `lengths` has the wrong shape, or is not within 0 to `longest`.
        """
        given = torch.as_tensor(lengths, device=values.device)
        if values.dim() < 2 or given.shape != values.shape[:1]:
            raise InvalidArgumentError(
                "from_dense_lengths: values must have shape (batch, longest, …) and lengths (batch,), "
                f"found shapes {tuple(values.shape)} and {tuple(given.shape)}"
            )
        is_kept = torch.arange(values.shape[1], device=values.device) < given[:, None]
        return JaggedTensor(
            values[is_kept], None if weights is None else weights[is_kept], lengths=given
        )

    # -- dense forms ----------------------------------------------------------------

    def to_dense(self) -> list[Tensor]:
        """Returns one tensor ``(length, …)`` per bag without copying."""
        return list(torch.split(self._values, self._lengths.tolist()))

    def to_dense_weights(self) -> list[Tensor] | None:
        """Returns one tensor ``(length,)`` of weights per bag, or None if there are none."""
        if self._weights is None:
            return None
        return list(torch.split(self._weights, self._lengths.tolist()))

    def to_padded_dense(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor:
        """Returns ``(batch, desired_length, …)`` values; pads or truncates bags at the end.

        Args:
            desired_length: length of the result; None means the longest bag.
            padding_value: value of the padding.
        """
        return self._pad(self._values, desired_length, padding_value)

    def to_padded_dense_weights(
        self, desired_length: int | None = None, padding_value: float = 0.0
    ) -> Tensor | None:
        """Returns padded weights ``(batch, desired_length)``, or None if there are none.

        Args:
            desired_length: length of the result; None means the longest bag.
            padding_value: value of the padding.
        """
        if self._weights is None:
            return None
        return self._pad(self._weights, desired_length, padding_value)

    def _pad(self, flat: Tensor, desired_length: int | None, padding_value: float) -> Tensor:
        num_bags = self._lengths.numel()
        if desired_length is not None and torch.compiler.is_compiling():
            # No shape may depend on lengths, so truncated values go to an additional column.
            bags = torch.arange(num_bags, device=flat.device)
            bags = bags.repeat_interleave(self._lengths, output_size=flat.shape[0])
            columns = torch.arange(flat.shape[0], device=flat.device) - self.offsets()[bags]
            padded = flat.new_full((num_bags, desired_length + 1, *flat.shape[1:]), padding_value)
            padded[bags, columns.clamp(max=desired_length)] = flat
            return padded[:, :desired_length]
        longest = int(self._lengths.max()) if num_bags else 0
        length = longest if desired_length is None else desired_length
        padded = flat.new_full((num_bags, length, *flat.shape[1:]), padding_value)
        columns = torch.arange(length, device=flat.device)
        if length < longest:
            places = torch.arange(flat.shape[0], device=flat.device)
            starts = torch.repeat_interleave(self.offsets()[:-1], self._lengths)
            flat = flat[places - starts < length]
        padded[columns < self._lengths[:, None]] = flat
        return padded

    # -- moving -----------------------------------------------------------------------

    def to(self, device: torch.device | str, non_blocking: bool = False) -> JaggedTensor:
        """Returns the tensor on another device.

        Args:
            device: the device.
            non_blocking: whether copies from page-locked memory are asynchronous, see
                `torch.Tensor.to`.
        """
        return JaggedTensor._from_valid(
            *(
                None if part is None else part.to(device, non_blocking=non_blocking)
                for part in (self._values, self._weights, self._lengths, self._offsets)
            )  # type: ignore[arg-type]
        )

    def pin_memory(self) -> JaggedTensor:
        """Returns the tensor in page-locked memory, from which copies to a GPU are asynchronous."""
        return JaggedTensor._from_valid(
            *(
                None if part is None else part.pin_memory()
                for part in (self._values, self._weights, self._lengths, self._offsets)
            )  # type: ignore[arg-type]
        )

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keeps the memory of all parts allocated until `stream` has used it.

        Args:
            stream: the CUDA stream that uses the memory.
        """
        for part in (self._values, self._weights, self._lengths, self._offsets):
            if part is not None:
                part.record_stream(stream)

    def __repr__(self) -> str:
        if self._lengths.is_meta:
            return f"JaggedTensor(values {tuple(self._values.shape)}, device='meta')"
        bags = ", ".join(str(bag.tolist()) for bag in self.to_dense()[:8])
        more = f", … ({self._lengths.numel()} bags)" if self._lengths.numel() > 8 else ""
        weighted = "" if self._weights is None else ", weighted"
        return f"JaggedTensor([{bags}{more}]{weighted})"


def check_weights(weights: Tensor | Sequence[float] | None, values: Tensor) -> Tensor | None:
    """Converts weights to a tensor and checks their number.

    Raises:
        InvalidArgumentError: the numbers of weights and values differ.
    """
    if weights is None:
        return None
    checked = to_values(weights, "weights")
    if checked.shape[0] != values.shape[0]:
        raise InvalidArgumentError(
            f"weights: found {checked.shape[0]} weights for {values.shape[0]} values; give one weight "
            "per value",
            num_weights=checked.shape[0],
            num_values=values.shape[0],
        )
    return checked


def _leaves(tensor: JaggedTensor) -> tuple[list[Any], list[Any]]:
    return [tensor._values, tensor._weights, tensor._lengths], []


def _from_leaves(leaves: Iterable[Any], _: list[Any]) -> JaggedTensor:
    return JaggedTensor._from_valid(*leaves)


register_tree(JaggedTensor, _leaves, _from_leaves, ("values", "weights", "lengths"))
