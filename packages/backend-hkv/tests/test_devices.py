"""What is said where ``device: cuda`` was built without nvcc: it depends on whether there is a GPU."""

from __future__ import annotations

import pytest

from sparring.runtime.gpus import Gpu, Gpus
from sparring_hkv import devices


@pytest.fixture(autouse=True)
def _built_without_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices._MODULES, "cuda", "sparring_hkv._cuda_that_was_not_built")


def said(monkeypatch: pytest.MonkeyPatch, gpus: Gpus) -> str:
    monkeypatch.setattr(devices, "inspect_gpus", lambda: gpus)
    reason = devices.why_cuda_is_unavailable()
    assert reason is not None
    return reason


def test_with_a_gpu_it_is_said_how_to_build_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = said(monkeypatch, Gpus("580.65.06", "13.0", (Gpu("A GPU", 1 << 30),), None))
    assert "A GPU" in reason
    assert "nvcc of CUDA 12.4 to 13.x" in reason
    assert "pip install --force-reinstall" in reason
    assert "device: cpu" in reason


def test_without_a_gpu_that_is_said_and_nothing_is_to_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason = said(monkeypatch, Gpus(None, None, (), "there is no NVIDIA driver here"))
    assert "there is no NVIDIA driver here" in reason
    assert "device: cpu" in reason
    assert "pip install" not in reason
