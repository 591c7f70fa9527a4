"""Tensors that one stream of a GPU made and another uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["ProducedTensors"]


class ProducedTensors:
    """Tensors that the current stream is making, for a later use.

    A step may run on another stream than the backward pass that made its gradients. It then has to
    wait for that pass, on the GPU; and torch must not hand the memory out again before the step has
    used it.

    Args:
        device: where the tensors lie; on the CPU nothing is to be done.
        tensors: what will be used.
    """

    __slots__ = ("_device", "_event", "_stream", "_tensors")

    def __init__(self, device: torch.device, tensors: Sequence[Tensor]) -> None:
        self._device = device
        self._tensors = list(tensors)
        self._stream: torch.cuda.Stream | None = None
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.current_stream(device)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(self._stream)

    def take(self) -> None:
        """Later work on the current stream may use the tensors."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        if stream == self._stream:
            return
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
