"""Where tests put tables: on the CPU, on the emulator that stands in for a GPU, on a GPU.

A test that takes the fixture `table_device` runs on each of them. ``SPARRING_TEST_DEVICE=cuda`` (or
``cuda:1``) adds a GPU; what cannot be used here is skipped, with the reason.
"""

from __future__ import annotations

import os

__all__ = ["DEVICE_VARIABLE", "get_test_device", "list_test_devices", "why_unavailable"]

DEVICE_VARIABLE = "SPARRING_TEST_DEVICE"
"""Names a device on which device tests run, besides the CPU and the emulator."""


def get_test_device() -> str:
    """The device that the environment names; the emulator where it names none."""
    return os.environ.get(DEVICE_VARIABLE, "emulated")


def list_test_devices() -> list[str]:
    """Names of devices: ``cpu``, ``emulated``, and the one that the environment names."""
    return list(dict.fromkeys(["cpu", "emulated", get_test_device()]))


def why_unavailable(device: str) -> str | None:
    """The reason why no table can be on a device here; None if one can."""
    from sparring import make_plugin_manager
    from sparring.errors import SparringError

    try:
        found = make_plugin_manager().kernels(device.partition(":")[0])
    except SparringError as error:
        return str(error)
    return None if found.unavailable is None else found.unavailable()
