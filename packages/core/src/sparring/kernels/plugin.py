"""The kernel set of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts.descriptors import API_VERSION, KernelsDescriptor
from sparring.contracts.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparring.contracts.device.kernel_set import KernelSet
    from sparring.contracts.device.kernels import ArraySource


@hookimpl
def sparring_register_kernels() -> Sequence[KernelsDescriptor]:
    return [
        KernelsDescriptor(
            name="cpu",
            api_version=API_VERSION,
            summary="Key operations in C++ with AVX-512, AVX2 or portable code.",
            device="cpu",
            factory=_open_cpu_kernels,
        )
    ]


def _open_cpu_kernels(arrays: ArraySource) -> KernelSet:
    from sparring.kernels.cpu import CpuKernels

    return CpuKernels(arrays)
