"""Bags from tables on a device: ids, rows and gradients stay where they are.

    ids, offsets ──► KernelSet.pool_storage ──► bags ──► model, loss ──► gradient of the bags
                                                                             │
    ResourceManager.hold(batch id, DeviceGradients) ◄────────────────────────┘

Everything runs on the current stream of the caller, and forward waits for nothing. `emulated` stands
for a GPU whose memory is the host's: tensors of the CPU, for tests.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring import ResourceManager, StepContainer
from sparring.device_gradients import BagGradients, DeviceGradients
from sparring.errors import InvalidArgumentError
from sparring.kernel_set import ArraySource, KernelSet
from sparring.plugins import make_plugin_manager

__all__ = ["DevicePath", "kernel_set_for", "storage_device"]


def storage_device(device: torch.device | str | int | None) -> str:
    """What storages call a device: ``cpu``, ``cuda:1``, ``emulated``.

    Raises:
        InvalidArgumentError: tables lie on no device of this type.
    """
    if device is None:
        return "cpu"
    if device == "emulated":
        return "emulated"
    found = torch.device(device)
    if found.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            f"device must be cpu or cuda, found {str(device)!r}; tables lie nowhere else"
        )
    return "cpu" if found.type == "cpu" else f"cuda:{found.index or 0}"


def kernel_set_for(device: str) -> KernelSet:
    """The kernels of a device, on torch's tensors and current stream.

    Raises:
        PluginError: nobody offers kernels for it; the message says what to install.
        DeviceError: it cannot be used here.
    """
    kind, _, index = device.partition(":")
    where = torch.device("cpu" if kind == "emulated" else device)

    def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=where)

    def stream() -> int:
        return 0 if where.type == "cpu" else int(torch.cuda.current_stream(where).cuda_stream)

    arrays = ArraySource(
        empty=empty,
        stream=stream,
        index=int(index or 0),
        to_host=lambda array: array.cpu().numpy(),
        from_host=lambda array: torch.from_numpy(np.ascontiguousarray(array)).to(where),
        concatenate=lambda parts: torch.cat(list(parts)),
    )
    return make_plugin_manager().kernels(kind).factory(arrays)


class DevicePath:
    """One pooled feature of one table that lies on a device.

    Args:
        table: its name.
        mode: ``sum`` or ``mean``.
        device: as `storage_device` gives it.
    """

    def __init__(self, table: str, mode: str, device: str) -> None:
        self._table = table
        self._mode: Any = mode
        self.device = torch.device("cpu" if device == "emulated" else device)
        self._kernels = kernel_set_for(device)

    def takes(self, container: StepContainer, ids: Tensor, weights: Tensor | None) -> bool:
        """Whether bags of these can be pooled without a copy to the host."""
        wants_rows = weights is not None and weights.requires_grad and torch.is_grad_enabled()
        return (
            ids.device == self.device
            and ids.dtype is torch.int64
            and not wants_rows
            and container.reads_directly([self._table])
        )

    def pool(
        self,
        container: StepContainer,
        ids: Tensor,
        offsets: Tensor,
        weights: Tensor | None,
        *,
        is_training: bool,
    ) -> Tensor:
        """One embedding for each bag: ``(b, dim)``.

        Args:
            container: where the table lives.
            ids: ``(n,)`` on the device.
            offsets: ``(b + 1,)`` int64 on the device, from 0 to n, never falling.
            weights: ``(n,)``; they take no gradient.
            is_training: the module's own `training`.
        """
        container.check_readable([self._table])
        entry = container.entry(self._table)
        ids = ids.detach().contiguous()
        if weights is not None:
            dtype = getattr(torch, entry.config.computing_dtype.name)
            weights = weights.detach().to(self.device, dtype).contiguous()
        bags: Tensor = self._kernels.pool_storage(
            entry.storage, entry.config, ids, offsets, mode=self._mode, weights=weights
        )
        if not (is_training and torch.is_grad_enabled()):
            return bags
        batch = _Batch(container.resources, self._table, self._kernels, self._mode)
        batch.index = ids, offsets, weights
        out: Tensor = _Output.apply(_ANCHOR, batch, bags)  # type: ignore[no-untyped-call]
        return out


class _Batch:
    """A batch that was pooled in training, until its gradient came or its graph is gone."""

    __slots__ = ("_kernels", "_mode", "_resources", "_shadow_id", "index")

    index: tuple[Tensor, Tensor, Tensor | None]

    def __init__(
        self, resources: ResourceManager, table: str, kernels: KernelSet, mode: Any
    ) -> None:
        self._resources = resources
        self._kernels = kernels
        self._mode = mode
        self._shadow_id = resources.register_direct([table])

    def hold(self, gradient: Tensor) -> None:
        kept = gradient.contiguous()
        version = kept._version

        def check() -> None:
            if kept._version != version:
                raise InvalidArgumentError(
                    "the gradient of looked-up embeddings was changed in place between backward "
                    "and step; change a clone of it, or register a hook on the output"
                )

        ids, offsets, weights = self.index
        batch = BagGradients(ids, offsets, kept, self._mode, weights)
        sources = DeviceGradients(self._kernels, [batch])
        self._resources.hold(self._shadow_id, sources, check)

    def __del__(self) -> None:
        self._resources.release(self._shadow_id)


# What makes autograd call backward although no parameter is involved.
_ANCHOR = torch.empty(0, requires_grad=True)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, batch: _Batch, bags: Tensor) -> Tensor:
        ctx.batch = batch
        return bags.view_as(bags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        ctx.batch.hold(gradient)
        return None, None, None
