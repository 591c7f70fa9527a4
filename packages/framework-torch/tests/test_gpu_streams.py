"""Tables on a GPU and streams: tests that need a GPU, and tests of waits that do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparring.errors import InvalidArgumentError
from sparring_torch.device.streams import ProducedTensors
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer


class _Stream:
    def __init__(self) -> None:
        self.waited_for: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.waited_for.append(event)


class _Event:
    def __init__(self) -> None:
        self.recorded_on: list[Any] = []

    def record(self, stream: Any) -> None:
        self.recorded_on.append(stream)


class _Tensor:
    def __init__(self) -> None:
        self.used_on: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.used_on.append(stream)


def test_a_step_on_another_stream_waits_for_the_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    made_on, other = _Stream(), _Stream()
    current = made_on
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    tensor = _Tensor()
    produced = ProducedTensors(torch.device("cuda:0"), [tensor])  # type: ignore[list-item]
    produced.take()
    assert tensor.used_on == []
    current = other
    produced.take()
    (event,) = other.waited_for
    assert event.recorded_on == [made_on]
    # Its memory is not reused before that stream is done.
    assert tensor.used_on == [other]


def test_tensors_of_the_cpu_need_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("tensors of the CPU need no stream and no event")

    for name in ("current_stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, refuse)
    tensor = _Tensor()
    ProducedTensors(torch.device("cpu"), [tensor]).take()  # type: ignore[list-item]
    assert tensor.used_on == []


def _trained(device: Any, backward_stream: Any = None) -> torch.Tensor:
    module = EmbeddingBag(16, name="items", mode="sum", device=device)
    optimizer = Optimizer(module, "adagrad", lr=0.1)
    for step in range(4):
        ids = (torch.arange(4096, device=device) * 7 + step).reshape(512, 8) % 1000
        if backward_stream is None:
            module(ids).sin().sum().backward()
        else:
            backward_stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(backward_stream):
                module(ids).sin().sum().backward()
            # On the caller's stream, and without waiting here.
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return module.eval()(torch.arange(1000, device=device)[:, None]).cpu()


def test_gradients_of_another_stream_on_cuda(gpu: torch.device) -> None:
    with torch.cuda.device(gpu):
        rows = _trained(gpu, torch.cuda.Stream())
    torch.testing.assert_close(rows, _trained(gpu))
    torch.testing.assert_close(rows, _trained(None), rtol=1e-5, atol=1e-5)


def test_a_forward_pass_never_waits_for_cuda(gpu: torch.device) -> None:
    module = EmbeddingBag(16, name="items", mode="sum", device=gpu)
    optimizer = Optimizer(module, "adagrad", lr=0.1)
    ids = torch.arange(512, device=gpu).reshape(64, 8)
    module(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize(gpu)
    # torch only knows its own waits, so the stream is blocked, and the host must not wait.
    stream, passed = torch.cuda.current_stream(gpu), torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    passed.record(stream)
    module(ids).sum().backward()
    assert not passed.query(), "the host waited for the stream"
    optimizer.step()
    optimizer.zero_grad()


def test_ids_of_the_host_are_rejected_on_cuda(gpu: torch.device) -> None:
    module = EmbeddingBag(16, name="items", device=gpu)
    with pytest.raises(InvalidArgumentError, match="is on cuda:0, and the ids on cpu"):
        module(torch.ones(2, 2, dtype=torch.int64))


def test_the_current_device_is_kept_on_cuda(gpu: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU only")
    with torch.cuda.device(0):
        _trained(torch.device("cuda:1"))
        assert torch.cuda.current_device() == 0
