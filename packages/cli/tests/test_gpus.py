"""The report of ``doctor`` about GPUs: with a driver, with a failing one, and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring_cli import gpus
from sparring_cli.gpus import Gpu, inspect_gpus

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 07:18:15 UTC\n"


class Driver:
    """The few functions of libcuda, for GPUs of these names."""

    def __init__(self, *names: str, init_code: int = 0, device_code: int = 0) -> None:
        self.names = names
        self.init_code = init_code
        self.device_code = device_code

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 12040
        return 0

    def cuInit(self, flags: int) -> int:
        return self.init_code

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = number
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = self.names[device.value].encode()[: size - 1]
        return self.device_code

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        size._obj.value = 80 << 30
        return 0

    def cuGetErrorString(self, code: int, text: Any) -> int:
        text._obj.value = f"what {code} means".encode()
        return 0


def test_gpus_and_their_driver_are_named(tmp_path: Path) -> None:
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(VERSION)
    found = inspect_gpus(tmp_path, Driver("A GPU", "Another"))
    assert found.devices == (Gpu("A GPU", 80 << 30), Gpu("Another", 80 << 30))
    assert (found.driver, found.cuda_release, found.reason) == ("580.65.06", "12.4", None)


def test_a_failing_driver_reports_the_reason(tmp_path: Path) -> None:
    found = inspect_gpus(tmp_path, Driver("A GPU", init_code=999))
    assert found.devices == ()
    assert found.cuda_release == "12.4"
    assert found.reason == "cuInit failed: what 999 means"


def test_a_gpu_that_cannot_be_queried_is_still_listed(tmp_path: Path) -> None:
    (device,) = inspect_gpus(tmp_path, Driver("A GPU", device_code=7)).devices
    assert device.name == "unknown (what 7 means)"


def test_hidden_gpus_are_not_listed(tmp_path: Path) -> None:
    found = inspect_gpus(tmp_path, Driver())
    assert found.reason is not None
    assert "shows this process no GPU" in found.reason


def test_a_machine_without_a_driver_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "_LIBRARY", "libcuda-that-nobody-has.so.1")
    found = inspect_gpus(tmp_path)
    assert (found.driver, found.cuda_release, found.devices) == (None, None, ())
    assert found.reason is not None
    assert "no NVIDIA driver" in found.reason
