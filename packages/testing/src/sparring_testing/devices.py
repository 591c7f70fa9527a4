"""Devices on which tests create tables: the CPU, the emulator that replaces a GPU, and a GPU.

A test that uses the fixture `table_device` runs on each of them. ``SPARRING_TEST_DEVICE=cuda`` (or
``cuda:1``) adds a GPU. A device that is unavailable is skipped, with the reason.
"""

from __future__ import annotations

import os

__all__ = ["DEVICE_VARIABLE", "get_test_device", "list_test_devices", "why_unavailable"]

DEVICE_VARIABLE = "SPARRING_TEST_DEVICE"
"""Environment variable with the name of an additional device for device tests."""


def get_test_device() -> str:
    """Returns the device that the environment variable specifies, or the emulator by default."""
    return os.environ.get(DEVICE_VARIABLE, "emulated")


def list_test_devices() -> list[str]:
    """Lists the devices to test: ``cpu``, ``emulated`` and the one in the environment variable."""
    return list(dict.fromkeys(["cpu", "emulated", get_test_device()]))


def why_unavailable(device: str) -> str | None:
    """Returns why tables cannot be created on a device, or None if they can."""
    from sparring import make_plugin_manager
    from sparring.errors import SparringError

    try:
        found = make_plugin_manager().kernels(device.partition(":")[0])
    except SparringError as error:
        return str(error)
    return None if found.unavailable is None else found.unavailable()
