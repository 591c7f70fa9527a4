"""Embeddings from tables on a device: ids, rows and gradients stay where they are.

    ids, offsets ──► KernelSet.pool_storage ──► bags ──► model, loss ──► gradient of the bags
                                                                             │
    ResourceManager.hold(batch id, DeviceGradients) ◄────────────────────────┘

Everything runs on the current stream of the caller, and forward waits for nothing. `emulated` stands
for a GPU whose memory is the host's: tensors of the CPU, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from sparring import ResourceManager, StepContainer
from sparring.device_gradients import BagGradients, DeviceGradients
from sparring.device_reads import pooled_on_device
from sparring.errors import InvalidArgumentError
from sparring_torch.device_groups import DeviceGroup, each_alone
from sparring_torch.device_kernels import kernel_set_for, tensor_device
from sparring_torch.device_streams import Produced

__all__ = ["DevicePath"]


class DevicePath:
    """Lookups in tables that lie on one device.

    Args:
        device: as storages call it: ``cuda:1``, ``emulated``.
    """

    def __init__(self, device: str) -> None:
        self.name = device
        self.device = tensor_device(device)
        self.kernels = kernel_set_for(device)

    def check_place(self, tables: Sequence[str], what: str, given: Tensor) -> None:
        """Refuses what lies on another device than the tables.

        Raises:
            InvalidArgumentError: naming both devices.
        """
        if given.device == self.device:
            return
        names = ", ".join(map(repr, tables[:3])) + (", …" if len(tables) > 3 else "")
        raise InvalidArgumentError(
            f"table {names} lies on {self.name}, and the {what} on {given.device}; move them "
            f"there: .to({str(self.device)!r})",
            table=tables[0],
            device=str(given.device),
        )

    def pool(
        self, container: StepContainer, groups: Sequence[DeviceGroup], *, is_training: bool
    ) -> list[Tensor]:
        """One embedding for each bag of each group: ``(bags, dim)``.

        Args:
            container: where the tables live.
            groups: what is looked up.
            is_training: the module's own `training`.
        """
        container.check_readable(list(dict.fromkeys(group.table for group in groups)))
        for group in groups:
            self._prepare(container, group)
        if not (is_training and torch.is_grad_enabled()):
            return [self._pooled(container, group) for group in groups]
        batch = _Batch(self, container, groups)
        outputs: tuple[Tensor, ...] = _Output.apply(  # type: ignore[no-untyped-call]
            _ANCHOR, batch, *(group.weights for group in groups)
        )
        return list(outputs)

    def _prepare(self, container: StepContainer, group: DeviceGroup) -> None:
        weights = group.weights
        if weights is None:
            return
        self.check_place([group.table], "weights", weights)
        dtype = getattr(torch, container.entry(group.table).config.computing_dtype.name)
        group.weights = weights.to(dtype).contiguous()

    def _pooled(
        self,
        container: StepContainer,
        group: DeviceGroup,
        *,
        weights: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> Tensor:
        mode: Any = group.mode
        bags: Tensor = pooled_on_device(
            self.kernels,
            container.entry(group.table),
            group.ids,
            group.offsets if offsets is None else offsets,
            mode=mode,
            weights=_still(group.weights) if offsets is None else weights,
        )
        return bags

    def rows(self, container: StepContainer, group: DeviceGroup) -> Tensor:
        """The embedding of each id: ``(n, dim)``."""
        return self._pooled(container, group, offsets=each_alone(group.ids))


class _Batch:
    """A batch that was looked up in training, until its gradients came or its graph is gone."""

    __slots__ = ("_checked", "_resources", "_shadow_ids", "container", "groups", "path")

    def __init__(
        self, path: DevicePath, container: StepContainer, groups: Sequence[DeviceGroup]
    ) -> None:
        self.path, self.container, self.groups = path, container, list(groups)
        self._resources: ResourceManager = container.resources
        register = self._resources.register_direct
        self._shadow_ids = {name: register([name]) for name in {each.table for each in groups}}

    def hold(self, gradients: Sequence[Tensor]) -> None:
        """Hands the gradients of the outputs to the step."""
        kept = [gradient.contiguous() for gradient in gradients]
        versions = [gradient._version for gradient in kept]

        def check() -> None:
            if versions != [gradient._version for gradient in kept]:
                raise InvalidArgumentError(
                    "the gradient of looked-up embeddings was changed in place between backward "
                    "and step; change a clone of it, or register a hook on the output"
                )

        tensors = [*kept, *(each.ids for each in self.groups), *(g.offsets for g in self.groups)]
        tensors += [each.weights for each in self.groups if each.weights is not None]
        produced = Produced(self.path.device, tensors)
        for table, shadow_id in self._shadow_ids.items():
            batches = [
                BagGradients(
                    group.ids,
                    group.offsets,
                    gradient,
                    group.mode,  # type: ignore[arg-type]
                    _still(group.weights),
                    produced.take,
                )
                for group, gradient in zip(self.groups, kept, strict=True)
                if group.table == table
            ]
            sources = DeviceGradients(self.path.kernels, batches)
            self._resources.hold(shadow_id, sources, check)

    def __del__(self) -> None:
        for shadow_id in self._shadow_ids.values():
            self._resources.release(shadow_id)


# What makes autograd call backward although no parameter is involved.
_ANCHOR = torch.empty(0, requires_grad=True)


class _Output(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _anchor: Tensor, batch: _Batch, *_weights: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.batch = batch
        path, container = batch.path, batch.container
        outputs, rows = [], []
        for place, group in enumerate(batch.groups):
            if not ctx.needs_input_grad[2 + place]:
                outputs.append(path._pooled(container, group))
                rows.append(torch.empty(0))
                continue
            # The gradient of the weights needs the rows again.
            own = path.rows(container, group)
            rows.append(own)
            mode: Any = group.mode
            outputs.append(
                path.kernels.pool(
                    own, _places(group), group.offsets, mode=mode, weights=_still(group.weights)
                )
            )
        ctx.save_for_backward(*rows)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        batch: _Batch = ctx.batch
        batch.hold(gradients)
        of_weights: list[Tensor | None] = []
        for place, (group, gradient, rows) in enumerate(
            zip(batch.groups, gradients, ctx.saved_tensors, strict=True)
        ):
            if not ctx.needs_input_grad[2 + place]:
                of_weights.append(None)
                continue
            mode: Any = group.mode
            of_weights.append(
                batch.path.kernels.pool_weight_gradient(
                    gradient.contiguous(), rows, _places(group), group.offsets, mode=mode
                )
            )
        return None, None, *of_weights


def _places(group: DeviceGroup) -> Tensor:
    return each_alone(group.ids)[:-1]


def _still(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights.detach()
