"""The PyTorch adapter of sparring."""

from __future__ import annotations

from sparring_torch.jagged_tensor import JaggedTensor
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.keyed_tensor import KeyedTensor

__all__ = ["JaggedTensor", "KeyedJaggedTensor", "KeyedTensor"]
