"""Parts of jagged tensors: values, weights, lengths and offsets."""

from __future__ import annotations

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jaggedness import lengths_to_offsets

__all__ = ["JaggedParts"]


class JaggedParts:
    """The parts of a `JaggedTensor` or a `KeyedJaggedTensor`, stored flat, bag after bag."""

    __slots__ = ("_lengths", "_offsets", "_values", "_weights")

    _values: Tensor
    _weights: Tensor | None
    _lengths: Tensor
    _offsets: Tensor | None

    def values(self) -> Tensor:
        """Returns the values ``(n, …)``, bag after bag."""
        return self._values

    def weights(self) -> Tensor:
        """Returns the weights ``(n,)`` of the values.

        Raises:
            InvalidArgumentError: the tensor has no weights.
        """
        if self._weights is None:
            raise InvalidArgumentError(
                f"weights: this {type(self).__name__} has none; create it with weights=…, or call "
                "weights_or_none()"
            )
        return self._weights

    def weights_or_none(self) -> Tensor | None:
        return self._weights

    def lengths(self) -> Tensor:
        """Returns the number of values per bag, ``(bags,)``."""
        return self._lengths

    def lengths_or_none(self) -> Tensor | None:
        return self._lengths

    def offsets(self) -> Tensor:
        """Returns the start of each bag, and the end: ``(bags + 1,)``."""
        if self._offsets is None:
            self._offsets = lengths_to_offsets(self._lengths)
        return self._offsets

    def offsets_or_none(self) -> Tensor | None:
        return self._offsets

    def device(self) -> torch.device:
        return self._values.device
