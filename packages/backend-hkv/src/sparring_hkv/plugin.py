"""The sparring plugin of this package. Importing it does not load the native library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from sparring.contracts import KernelsDescriptor, StorageDescriptor, hookimpl
from sparring_hkv.options import HkvOptions

if TYPE_CHECKING:
    from sparring.contracts import ArraySource, KernelSet, Storage, TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="hkv",
            api_version=(1, 0),
            summary="Hash table in memory, which grows or evicts by a policy.",
            options=HkvOptions,
            factory=_open,
            estimate_bytes=_estimate,
        )
    ]


@hookimpl
def sparring_register_kernels() -> Sequence[KernelsDescriptor]:
    cuda = KernelsDescriptor(
        name="cuda",
        api_version=(1, 0),
        summary="Key operations on NVIDIA GPUs.",
        device="cuda",
        unavailable=_why_cuda_is_unavailable,
        factory=_open_cuda_kernels,
        num_devices=_num_gpus,
    )
    if find_spec("sparring_hkv._emulated") is None:
        return [cuda]
    emulated = KernelsDescriptor(
        name="emulated",
        api_version=(1, 0),
        summary="GPU kernels on an emulator, which is slow and intended for tests.",
        device="emulated",
        factory=_open_emulated_kernels,
    )
    return [cuda, emulated]


def _why_cuda_is_unavailable() -> str | None:
    from sparring_hkv.devices import why_cuda_is_unavailable

    return why_cuda_is_unavailable()


def _num_gpus() -> int:
    from sparring_hkv.devices import num_gpus

    return num_gpus()


def _open_cuda_kernels(arrays: ArraySource) -> KernelSet:
    from sparring_hkv.device_kernels import DeviceKernels

    return DeviceKernels("cuda", arrays)


def _open_emulated_kernels(arrays: ArraySource) -> KernelSet:
    from sparring_hkv.device_kernels import DeviceKernels

    return DeviceKernels("emulated", arrays)


def _open(table: TableConfig, options: HkvOptions) -> Storage:
    from sparring_hkv.backend import HkvStorage

    return HkvStorage(table, options)


def _estimate(table: TableConfig, options: HkvOptions, rows: int) -> Mapping[str, int]:
    from sparring_hkv.estimate import estimate_hkv_bytes

    return estimate_hkv_bytes(table, options, rows)
