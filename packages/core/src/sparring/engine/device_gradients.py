"""Gradients as they wait for a step: by key, or on a device as they came."""

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
"""Batches of a step that wait as they came. Beyond it they are added up by key."""


class SummedByKey(NamedTuple):
    """The gradient of each key."""

    keys: DeviceArray
    """``(u,)``"""
    gradients: DeviceArray
    """``(u, dim)``"""
    take: Callable[[], None] | None = None
    """Called before the arrays are used: the current stream then waits for their maker."""
    row_handles: Any = None
    """Native `RowHandles` of the keys, if the plan of their batch has them."""
    num_bad: DeviceArray | None = None
    """``(1,)`` int64: 0 if these, and those of other tables, are finite; None: it was looked at."""


@dataclass(frozen=True, slots=True)
class BagGradients:
    """The gradient of bags that were pooled from a table; its arrays must not change."""

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
    """Called before the arrays are used: makes the current stream wait for who made them."""
    known: Dedup | None = None
    """The ids deduplicated, where the lookup did that already."""


@dataclass(frozen=True, slots=True)
class DeviceGradients:
    """Batches of a step whose gradients came, not yet added up: what native `GradientSources` are
    in host memory."""

    kernels: KernelSet
    batches: Sequence[BagGradients | SummedByKey]
    """At least one, in the order in which their gradients came."""

    def joined(self, other: Any) -> DeviceGradients | None:
        """With the batches of `other` behind these; None where they are not of this device."""
        if not isinstance(other, DeviceGradients) or other.kernels.device != self.kernels.device:
            return None
        return DeviceGradients(self.kernels, [*self.batches, *other.batches])

    @property
    def only_bags(self) -> BagGradients | None:
        """The only batch, where its ids are not deduplicated: it can be summed with other tables'."""
        first = self.batches[0]
        if len(self.batches) > 1 or not isinstance(first, BagGradients) or first.known is not None:
            return None
        return first

    @property
    def is_long(self) -> bool:
        """Whether so many batches wait that their sum takes less memory."""
        return len(self.batches) >= _MAX_WAITING

    def add_up(self) -> DeviceGradients:
        """The same as one batch: memory for distinct keys only. Waits as `by_key`."""
        summed = self.by_key()
        take = self.kernels.arrays.follow([summed.keys, summed.gradients])
        return DeviceGradients(self.kernels, [SummedByKey(summed.keys, summed.gradients, take)])

    def by_key(self) -> SummedByKey:
        """Adds up what belongs to one key, batch after batch.

        Waits for the device once a batch, and once more where there are several: how many keys
        there are decides how much memory comes next.
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
        """The same in host memory: keys ``(u,)`` and gradients ``(u, dim)``."""
        summed = self.by_key()
        to_host = self.kernels.arrays.to_host
        return (
            np.ascontiguousarray(to_host(summed.keys)),
            np.ascontiguousarray(to_host(summed.gradients)),
        )
