"""The ``nccl`` collective of sparring: buffers in GPU memory, over NCCL.

It is chosen by name, as ``collective: {backend: nccl}``. The ``torch`` collective uses it for tensors on
GPUs, if the job uses NCCL.
"""

from __future__ import annotations

from sparring_nccl.options import NcclOptions

__all__ = ["NcclOptions"]

__version__ = "0.1.0"
