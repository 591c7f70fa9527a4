"""Accumulated gradients of a step: summed by key, or as unsummed batches on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import Dedup, DeviceArray, Pooling
from sparring.contracts.storage.results import Keys, Rows

__all__ = ["BagGradients", "DeviceGradients", "SummedByKey"]


_MAX_WAITING = 8
"""Maximum number of unsummed batches of a step. Beyond it, they are summed by key."""


class SummedByKey(NamedTuple):
    """Gradient of each key."""

    keys: DeviceArray
    """``(u,)``"""
    gradients: DeviceArray
    """``(u, dim)``"""
    take: Callable[[], None] | None = None
    """Called before the arrays are used: makes the current stream wait for the stream that wrote
    them."""
    row_handles: Any = None
    """Native `RowHandles` of the keys, if the plan of their batch contains them."""
    num_bad: DeviceArray | None = None
    """``(1,)`` int64: 0 if these gradients, and those of other tables, are finite; None if this
    was already checked."""


@dataclass(frozen=True, slots=True)
class BagGradients:
    """Gradient of bags that were pooled from a table. The arrays must not change."""

    ids: DeviceArray
    """``(n,)``"""
    offsets: DeviceArray
    """``(b + 1,)``"""
    gradient: DeviceArray
    """``(b, dim)``"""
    mode: Pooling
    weights: DeviceArray | None
    """``(n,)``"""
    take: Callable[[], None] | None = None
    """Called before the arrays are used: makes the current stream wait for the stream that wrote
    them."""
    known: Dedup | None = None
    """Deduplicated ids, if the lookup computed them."""


@dataclass(frozen=True, slots=True)
class DeviceGradients:
    """Unsummed gradients of a step on a device; corresponds to native `GradientSources` in host
    memory."""

    kernels: KernelSet
    batches: Sequence[BagGradients | SummedByKey]
    """At least one, in the order in which their gradients arrived."""

    def joined(self, other: Any) -> DeviceGradients | None:
        """Returns the gradients with the batches of others appended, or None if they are not on this
        device.

        Args:
            other: gradients of the same table, of any kind.
        """
        if not isinstance(other, DeviceGradients) or other.kernels.device != self.kernels.device:
            return None
        return DeviceGradients(self.kernels, [*self.batches, *other.batches])

    @property
    def only_bags(self) -> BagGradients | None:
        """The only batch, if there is one and its ids are not deduplicated. It can be summed in one
        call with the batches of other tables."""
        first = self.batches[0]
        if len(self.batches) > 1 or not isinstance(first, BagGradients) or first.known is not None:
            return None
        return first

    @property
    def is_long(self) -> bool:
        """Whether the number of batches has reached the maximum, so that they should be summed."""
        return len(self.batches) >= _MAX_WAITING

    def add_up(self) -> DeviceGradients:
        """Returns the sum by key as one batch, which needs memory for distinct keys only. Waits for the
        device like `by_key`."""
        summed = self.by_key()
        take = self.kernels.arrays.follow([summed.keys, summed.gradients])
        return DeviceGradients(self.kernels, [SummedByKey(summed.keys, summed.gradients, take)])

    def by_key(self) -> SummedByKey:
        """Sums the gradients by key, batch after batch.

        Waits for the device once per batch, and once more if there are several, because the number of
        keys determines how much memory is allocated.
        """
        for each in self.batches:
            if each.take is not None:
                each.take()
        parts = [self._by_key(each) for each in self.batches]
        if len(parts) == 1:
            return parts[0]
        concatenate = self.kernels.arrays.concatenate
        found = self.kernels.dedup(concatenate([each.keys for each in parts]))
        gradients = self.kernels.segment_sum(
            concatenate([each.gradients for each in parts]), found.inverse, len(found.keys)
        )
        return SummedByKey(found.keys, gradients)

    def _by_key(self, batch: BagGradients | SummedByKey) -> SummedByKey:
        if isinstance(batch, SummedByKey):
            return batch
        found = batch.known or self.kernels.dedup(batch.ids)
        gradients = self.kernels.pool_backward(
            batch.gradient,
            found.inverse,
            batch.offsets,
            len(found.keys),
            mode=batch.mode,
            weights=batch.weights,
        )
        return SummedByKey(found.keys, gradients)

    def summed(self, _view: Any) -> tuple[Keys, Rows]:
        """Returns the sums by key in host memory: keys ``(u,)`` and gradients ``(u, dim)``.

        Args:
            _view: ignored. Native `GradientSources` need the view of the table.
        """
        summed = self.by_key()
        to_host = self.kernels.arrays.to_host
        return (
            np.ascontiguousarray(to_host(summed.keys)),
            np.ascontiguousarray(to_host(summed.gradients)),
        )
