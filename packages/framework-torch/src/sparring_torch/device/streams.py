"""Tensors that one GPU stream produces and another stream uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["ProducedTensors"]


class ProducedTensors:
    """Tensors that the current stream produces, for use on any stream.

    The step may run on another stream than the backward pass that produced its gradients. It then
    has to wait for that stream on the GPU, and torch must not reuse the memory before the step has
    used it.

    Args:
        device: device of the tensors; on the CPU nothing needs to be done.
        tensors: the tensors.
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
        """Makes the tensors safe to use in later work on the current stream."""
        if self._event is None:
            return
        stream = torch.cuda.current_stream(self._device)
        if stream == self._stream:
            return
        stream.wait_event(self._event)
        for tensor in self._tensors:
            tensor.record_stream(stream)
