"""Looks up embeddings in tables on a device; ids, rows and gradients stay on that device.

    ids, offsets ──► KernelSet.pool_storage ──► bags ──► model, loss ──► gradient of the bags
                                                                             │
    ResourceManager.accumulate_sources(id, DeviceGradients) ◄────────────────┘

If rows are on several ranks, they are first copied from device to device and then pooled:

    ids ──► look_up ────────────► rows (u, dim) ──► KernelSet.pool ──► bags

All work runs on the caller's current stream or is ordered with it. On one rank, forward never waits
for the device. `emulated` is a GPU that uses host memory, for tests; its tensors are CPU tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring import StepContainer
from sparring.adapter import (
    BagGradients,
    DeviceGradients,
    Lookup,
    ResourceManager,
    failure_reports,
    look_up,
    pulls_on_device,
)
from sparring.contracts import Dedup, KernelSet, StorageLookup
from sparring.errors import InvalidArgumentError
from sparring_torch.device.groups import DeviceGroup, single_id_offsets
from sparring_torch.device.kernels import get_kernel_set, tensor_device
from sparring_torch.device.memory import memory_errors
from sparring_torch.device.streams import ProducedTensors

__all__ = ["DevicePath"]


class DevicePath:
    """Lookups in tables on one device.

    Args:
        device: name of the device as storages use it, for example ``cuda:1`` or ``emulated``.
    """

    def __init__(self, device: str) -> None:
        self.name = device
        self.device = tensor_device(device)
        self.kernels = get_kernel_set(device)

    def check_device(self, tables: Sequence[str], what: str, given: Tensor) -> None:
        """Checks that a tensor is on the device of the tables.

        Raises:
            InvalidArgumentError: the tensor is on another device; the message names both devices.
        """
        if given.device == self.device:
            return
        names = ", ".join(map(repr, tables[:3])) + (", …" if len(tables) > 3 else "")
        raise InvalidArgumentError(
            f"lookup: table {names} is on {self.name}, but the {what} are on {given.device}; move them "
            f"there with .to({str(self.device)!r})",
            table=tables[0],
            device=str(given.device),
        )

    @contextmanager
    def raising_on_all_ranks(
        self, container: StepContainer, tables: Sequence[str], *, is_training: bool
    ) -> Iterator[None]:
        """Raises errors of the block, which precedes a lookup, on all ranks.

        Errors of torch's allocator become `DeviceMemoryError`.

        Args:
            container: the container of the tables.
            tables: the tables that are looked up.
            is_training: `AnchoredModule.is_training` of the module.
        """
        try:
            with memory_errors(self.device):
                yield
        except Exception as error:
            if container.reads_directly(tables):
                raise
            is_registered = is_training and torch.is_grad_enabled()
            if pulls_on_device(container.state, tables):
                requests = [(table, None) for table in tables]
                look_up(
                    container.state,
                    requests,
                    kernels=self.kernels,
                    is_training=is_registered,
                    own_error=error,
                )
            else:
                nothing = [(table, np.empty(0, np.int64)) for table in tables]
                container.lookup_all(nothing, is_registered=is_registered, own_error=error)
            raise

    def pool(
        self, container: StepContainer, groups: Sequence[DeviceGroup], *, is_training: bool
    ) -> list[Tensor]:
        """Returns one embedding per bag of each group: ``(bags, dim)``.

        Args:
            container: the container of the tables.
            groups: the bags to look up.
            is_training: `AnchoredModule.is_training` of the module.
        """
        is_registered = is_training and torch.is_grad_enabled()
        tables = [group.table for group in groups]
        with self.raising_on_all_ranks(container, tables, is_training=is_training):
            for group in groups:
                self._prepare(container, group)
        sources = self._sources(container, groups, is_registered)
        with failure_reports(container.state, self.kernels, tables):
            if not is_registered:
                return self.pooled(sources, groups)
            batch = _Batch(self, container, groups, sources)
            outputs: tuple[Tensor, ...] = _Output.apply(  # type: ignore[no-untyped-call]
                _ANCHOR, batch, *(group.weights for group in groups)
            )
            return list(outputs)

    def pooled(
        self, sources: Sequence[_StoredRows | _PulledRows], groups: Sequence[DeviceGroup]
    ) -> list[Tensor]:
        """Pools sources that are all stored or all pulled; stored ones share their kernel launches."""
        lookups, bags = list[StorageLookup](), list[Tensor]()
        for source, group in zip(sources, groups, strict=True):
            if isinstance(source, _StoredRows):
                lookups.append(source.lookup(group))
            else:
                bags.append(source.pooled(group))
        return bags or self.kernels.pool_tables(lookups)

    def _sources(
        self, container: StepContainer, groups: Sequence[DeviceGroup], is_registered: bool
    ) -> list[_StoredRows | _PulledRows]:
        """Returns the source of the rows of each group."""
        tables = list(dict.fromkeys(group.table for group in groups))
        if container.reads_directly(tables):
            container.check_readable(tables)
            return [_StoredRows(self, container, group.table) for group in groups]
        requests = [(group.table, group.ids) for group in groups]
        lookups = look_up(
            container.state, requests, kernels=self.kernels, is_training=is_registered
        )
        return [_PulledRows(self.kernels, each) for each in lookups]

    def accumulate_sources(
        self, container: StepContainer, groups: Sequence[DeviceGroup], gradients: Sequence[Tensor]
    ) -> None:
        """Hands gradients to the step for bags that `pool` looked up without registering them."""
        for group in groups:
            self._prepare(container, group)
        sources = [_StoredRows(self, container, group.table) for group in groups]
        _Batch(self, container, groups, sources).accumulate_sources(gradients)

    def weight_gradient(
        self, container: StepContainer, group: DeviceGroup, gradient: Tensor
    ) -> Tensor:
        """Computes the gradient ``(n,)`` of the weights of a group; reads the rows again."""
        (source,) = self._sources(container, [group], is_registered=False)
        rows, inverse = source.rows(group)
        mode: Any = group.mode
        found: Tensor = self.kernels.pool_weight_gradient(
            gradient.contiguous(), rows, inverse, group.offsets, mode=mode
        )
        return found

    def _prepare(self, container: StepContainer, group: DeviceGroup) -> None:
        weights = group.weights
        if weights is None:
            return
        self.check_device([group.table], "weights", weights)
        dtype = getattr(torch, container.entry(group.table).config.computing_dtype.name)
        group.weights = weights.to(dtype).contiguous()


class _StoredRows:
    """Rows in a storage on this rank."""

    def __init__(self, path: DevicePath, container: StepContainer, table: str) -> None:
        self._kernels = path.kernels
        self._entry = container.entry(table)
        self.found: Dedup | None = None
        """The deduplicated ids; None until they are deduplicated."""

    def lookup(self, group: DeviceGroup) -> StorageLookup:
        """Returns the lookup of one embedding per bag."""
        mode: Any = group.mode
        entry, weights = self._entry, _detach(group.weights)
        return StorageLookup(entry.storage, entry.config, group.ids, group.offsets, mode, weights)

    def rows(self, group: DeviceGroup) -> tuple[Tensor, Tensor]:
        """Returns embeddings ``(m, dim)`` and the index ``(n,)`` of the embedding of each id."""
        each = single_id_offsets(group.ids)
        rows: Tensor = self._kernels.pool_storage(
            self._entry.storage, self._entry.config, group.ids, each
        )
        return rows, each[:-1]


class _PulledRows:
    """Rows that were pulled from their owners."""

    def __init__(self, kernels: KernelSet, lookup: Lookup) -> None:
        self._kernels, self._rows = kernels, lookup.rows
        self.found: Dedup | None = Dedup(lookup.keys, lookup.inverse)

    def pooled(self, group: DeviceGroup) -> Tensor:
        """Returns one embedding per bag: ``(bags, dim)``."""
        rows, inverse = self.rows(group)
        mode: Any = group.mode
        bags: Tensor = self._kernels.pool(
            rows, inverse, group.offsets, mode=mode, weights=_detach(group.weights)
        )
        return bags

    def rows(self, _group: DeviceGroup) -> tuple[Tensor, Tensor]:
        """Same as `_StoredRows.rows`."""
        assert self.found is not None
        inverse: Any = self.found.inverse
        return self._rows, inverse


class _Batch:
    """A batch looked up in training; it lives until its gradients arrive or its graph is freed."""

    __slots__ = ("_found", "_resources", "_shadow_ids", "groups", "path", "sources")

    def __init__(
        self,
        path: DevicePath,
        container: StepContainer,
        groups: Sequence[DeviceGroup],
        sources: Sequence[_StoredRows | _PulledRows],
    ) -> None:
        self.path, self.groups = path, list(groups)
        self.sources = list(sources)
        """The source of each group; cleared after the outputs are computed."""
        self._found = [each.found for each in sources]
        self._resources: ResourceManager = container.resources
        register = self._resources.register_direct
        self._shadow_ids = {name: register([name]) for name in {each.table for each in groups}}

    def accumulate_sources(self, gradients: Sequence[Tensor]) -> None:
        """Hands the gradients of the outputs to the step."""
        kept = [gradient.contiguous() for gradient in gradients]
        versions = [gradient._version for gradient in kept]

        def check() -> None:
            if versions != [gradient._version for gradient in kept]:
                raise InvalidArgumentError(
                    "step: the gradient of looked-up embeddings was changed in place after backward; "
                    "change a clone of it, or register a hook on the output"
                )

        tensors = [*kept, *(each.ids for each in self.groups), *(g.offsets for g in self.groups)]
        tensors += [each.weights for each in self.groups if each.weights is not None]
        known: list[Any] = [each for each in self._found if each is not None]
        tensors += [array for each in known for array in (each.keys, each.inverse)]
        produced = ProducedTensors(self.path.device, tensors)
        for table, shadow_id in self._shadow_ids.items():
            batches = [
                BagGradients(
                    group.ids,
                    group.offsets,
                    gradient,
                    group.mode,  # type: ignore[arg-type]
                    _detach(group.weights),
                    produced.take,
                    found,
                )
                for group, gradient, found in zip(self.groups, kept, self._found, strict=True)
                if group.table == table
            ]
            sources = DeviceGradients(self.path.kernels, batches)
            self._resources.accumulate_sources(shadow_id, sources, check)

    def __del__(self) -> None:
        for shadow_id in getattr(self, "_shadow_ids", {}).values():  # see DirectBatch.__del__
            self._resources.release(shadow_id)


# Requires a gradient, so that autograd calls backward although no input is a parameter.
_ANCHOR = torch.empty(0, requires_grad=True)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, batch: _Batch, *_weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.batch = batch
        wanted = ctx.needs_input_grad[2:]
        parts = list(zip(batch.sources, batch.groups, strict=True))
        plain = [part for part, is_wanted in zip(parts, wanted, strict=True) if not is_wanted]
        pooled = iter(batch.path.pooled([each for each, _ in plain], [each for _, each in plain]))
        outputs, saved = [], []
        for (source, group), is_wanted in zip(parts, wanted, strict=True):
            if not is_wanted:
                outputs.append(next(pooled))
                saved += [torch.empty(0), torch.empty(0)]
                continue
            # The gradient of the weights needs the rows again.
            rows, inverse = source.rows(group)
            saved += [rows, inverse]
            mode: Any = group.mode
            outputs.append(
                batch.path.kernels.pool(
                    rows, inverse, group.offsets, mode=mode, weights=_detach(group.weights)
                )
            )
        batch.sources.clear()
        ctx.save_for_backward(*saved)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        batch: _Batch = ctx.batch
        batch.accumulate_sources(gradients)
        of_weights: list[Tensor | None] = []
        saved = iter(ctx.saved_tensors)
        for position, (group, gradient) in enumerate(zip(batch.groups, gradients, strict=True)):
            rows, inverse = next(saved), next(saved)
            if not ctx.needs_input_grad[2 + position]:
                of_weights.append(None)
                continue
            mode: Any = group.mode
            of_weights.append(
                batch.path.kernels.pool_weight_gradient(
                    gradient.contiguous(), rows, inverse, group.offsets, mode=mode
                )
            )
        return None, None, *of_weights


def _detach(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.detach()
