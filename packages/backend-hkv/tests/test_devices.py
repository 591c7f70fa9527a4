"""Advice if ``device: cuda`` was built without nvcc: it depends on whether there is a GPU."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from sparring_hkv import devices


@pytest.fixture(autouse=True)
def _built_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices._MODULES, "cuda", "sparring_hkv._cuda_that_was_not_built")


def advice(monkeypatch: pytest.MonkeyPatch, num_gpus: int, init_code: int = 0) -> str:
    """The advice on a machine with a driver that shows `num_gpus`."""

    def count(found: Any) -> int:
        found._obj.value = num_gpus
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: init_code, cuDeviceGetCount=count)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    reason = devices.why_cuda_is_unavailable()
    assert reason is not None
    return reason


def test_with_a_gpu_the_message_contains_the_build_command(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = advice(monkeypatch, num_gpus=1)
    assert "there is a GPU" in reason
    assert "nvcc of CUDA 12.4 to 13.x" in reason
    assert "pip install --force-reinstall" in reason
    assert "device: cpu" in reason


@pytest.mark.parametrize(("num_gpus", "init_code"), [(0, 0), (1, 100)])
def test_with_a_driver_without_gpus_no_build_is_suggested(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, init_code: int
) -> None:
    reason = advice(monkeypatch, num_gpus, init_code)
    assert "the driver reports no GPU to this process" in reason
    assert "device: cpu" in reason
    assert "pip install" not in reason


def test_without_a_driver_no_build_is_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_DRIVER", "libcuda_that_nobody_has.so.1")
    reason = devices.why_cuda_is_unavailable()
    assert reason is not None
    assert "no NVIDIA driver was found" in reason
    assert "device: cpu" in reason
    assert "pip install" not in reason
