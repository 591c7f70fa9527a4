"""How much a training step puts on a device: kernels, copies, fills, and waits of the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import ArraySource, KernelSet, MethodChoice, Streams, TableConfig
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.options import HkvOptions

pytest.importorskip("sparring_hkv._emulated", reason="built without -DSPARRING_HKV_EMULATED=ON")

METHOD = BUILTIN_METHODS["rowwise_adagrad"]()
HYPER = METHOD.hyperparameters(lr=0.1)
TABLE = TableConfig("t", 8, seed=3).with_state(1, METHOD.name)
STATE = np.full(1, 0.5, np.float32)


@pytest.fixture
def device() -> KernelSet:
    arrays = ArraySource(empty=np.empty, stream=lambda: 0)
    return make_plugin_manager().kernels("emulated").factory(arrays)


def _worked(call: Callable[..., Any], *arguments: Any) -> tuple[Any, dict[str, int]]:
    handle = open_device("emulated").handle
    before = handle.work
    result = call(*arguments)
    return result, {name: count - before[name] for name, count in handle.work.items()}


def _known_step(device: KernelSet, **options: Any) -> dict[str, dict[str, int]]:
    """What each part of a second step over the same ids puts on the device."""
    storage = HkvStorage(TABLE, HkvOptions(device="emulated", **options))
    ids, offsets = np.random.default_rng(0).zipf(1.2, 4000) % 1000, np.arange(0, 4001, 4)
    work: dict[str, dict[str, int]] = {}
    for step in (1, 2):
        bags, work["pool"] = _worked(device.pool_storage, storage, TABLE, ids, offsets)
        found, work["dedup"] = _worked(device.dedup, ids)
        keys = found.keys
        sums, work["back"] = _worked(
            device.pool_backward, np.tanh(bags), found.inverse, offsets, len(keys)
        )
        _, work["finite"] = _worked(device.is_finite, sums)
        choice = MethodChoice(METHOD, HYPER, step)
        _, work["update"] = _worked(device.update_storage, storage, choice, keys, sums, STATE)
    return work


def _total(step: dict[str, dict[str, int]], what: str) -> int:
    return sum(part[what] for part in step.values())


def test_a_step_over_known_keys_uses_little_device_memory(device: KernelSet) -> None:
    """The figures of docs/explanation/gpu-table.md."""
    known = _known_step(device)
    launches = {name: part["launches"] for name, part in known.items()}
    assert launches == {"pool": 2, "dedup": 4, "back": 6, "finite": 1, "update": 3}
    assert (_total(known, "copies"), _total(known, "fills"), _total(known, "waits")) == (3, 2, 3)
    # Temporary arrays come from the pool of temporary memory, in the order of the stream.
    assert _total(known, "lasting_allocations") == 0


def test_a_step_over_known_keys_of_a_table_that_evicts_also_touches_them(
    device: KernelSet,
) -> None:
    known = _known_step(device, capacity=4000, policy="lru")
    assert known["update"] == {
        "launches": 5,
        "copies": 1,
        "fills": 0,
        "waits": 1,
        "lasting_allocations": 0,
    }


def test_evicted_rows_cost_one_wait_and_no_allocation(device: KernelSet) -> None:
    options = HkvOptions(device="emulated", capacity=500, policy="lru")
    storage = HkvStorage(TABLE, options)
    choice = MethodChoice(METHOD, HYPER, 1)
    works = []
    for first in range(0, 4000, 1000):
        keys = np.arange(first, first + 1000)
        gradients = np.full((1000, TABLE.dim), first // 1000 + 1, np.float32)
        change, work = _worked(
            lambda *given: device.update_storage(*given, keeps_evicted=True),
            *(storage, choice, keys, gradients, STATE),
        )
        rows = change.evicted.rows
        assert rows is not None
        assert len(rows) == change.evicted.count > 0
        numbers = rows.keys // 1000 + 1
        states = rows.rows.view(np.float32).reshape(len(rows), -1)[:, -1]
        assert np.array_equal(states, 0.5 + numbers**2)
        works.append(work)
    # The number of new rows, the number of evicted rows, and the evicted rows are in host memory.
    assert [work["waits"] for work in works[1:]] == [3, 3, 3]
    assert [work["lasting_allocations"] for work in works[1:]] == [0, 0, 0]


def test_the_initial_state_is_copied_once(device: KernelSet) -> None:
    state = np.array([0.125], np.float32)
    choice, keys = MethodChoice(METHOD, HYPER, 1), np.arange(10)
    copies = []
    for _ in range(2):
        storage = HkvStorage(TABLE, HkvOptions(device="emulated"))
        sums = np.zeros((10, 8), np.float32)
        _, work = _worked(device.update_storage, storage, choice, keys, sums, state.copy())
        copies.append(work["copies"])
        states = storage.find(keys).rows.view(np.float32).reshape(10, -1)[:, -1]
        assert states.tolist() == [0.125] * 10
    assert copies[0] == copies[1] + 1


def test_initial_states_are_bounded_and_do_not_use_the_default_stream() -> None:
    native: Any = open_device("emulated").native
    handle = native.Device(3)
    capsule = native.create_table(
        handle,
        row_bytes=TABLE.row_bytes,
        capacity=None,
        memory_bytes=None,
        policy="none",
        hash_seed=0,
        device_memory_bytes=None,
    )
    step = native.UpdateStep("rowwise_adagrad", {"lr": 0.1}, 1, 0)
    zeros = native.Initializer("zeros", (0.0, 0.0), 0)
    sums = np.zeros((1, 8), np.float32)
    with Streams(native.streams(handle)).open() as stream:
        used, held = native.num_default_uses(), []
        for number in range(200):
            state = np.array([number], np.float32)
            given = np.array([number % 8]), sums, state, None, False
            native.update_storage(handle, stream.handle, capsule, step, zeros, "float32", *given)
            held.append(handle.memory_use["lasting_bytes"])
        assert held[20] < held[100] == held[199]
        assert native.num_default_uses() == used
        rows, found = np.empty((8, 9), np.float32), np.empty(8, np.uint8)
        native.table_find(capsule, handle, stream.handle, np.arange(8), rows, found)
        assert rows[:, -1].tolist() == list(range(8))
