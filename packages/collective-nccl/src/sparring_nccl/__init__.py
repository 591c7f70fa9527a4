"""The ``nccl`` collective of sparring, which exchanges buffers in GPU memory over NCCL.

Choose it by name with ``collective: {backend: nccl}``. The ``torch`` collective uses it for tensors on
GPUs, if the job uses NCCL.
"""

from __future__ import annotations

from sparring_nccl.options import NcclOptions

__all__ = ["NcclOptions"]

__version__ = "0.1.0"
