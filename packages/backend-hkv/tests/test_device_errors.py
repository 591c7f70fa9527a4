"""Errors that callers get when a device has no memory, rejects a call, or fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import ArraySource, MethodChoice, TableConfig
from sparring.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    InvalidArgumentError,
)
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.options import HkvOptions
from sparring_testing.processes.deadlines import check_with_deadlines

_emulated = pytest.importorskip(
    "sparring_hkv._emulated", reason="built without -DSPARRING_HKV_EMULATED=ON"
)

KEYS = np.arange(50)
DIM = 8


class Opened:
    """A table of float32 or 16-bit rows on a separate emulated device, with keys 0 to 9."""

    def __init__(self, dtype: str = "float32") -> None:
        self.device = _emulated.Device()
        self.dtype = dtype
        self.width = DIM * (4 if dtype == "float32" else 2)
        self.table = _emulated.create_table(
            self.device,
            row_bytes=self.width,
            capacity=None,
            memory_bytes=None,
            policy="none",
            hash_seed=0,
            device_memory_bytes=None,
        )
        self.upsert(KEYS[:10])

    def find(self, keys: Any = KEYS) -> tuple[bytes, list[int]]:
        rows = np.empty((len(keys), self.width), np.uint8)
        found = np.empty(len(keys), np.uint8)
        _emulated.table_find(self.table, self.device, 0, keys, rows, found)
        return rows.tobytes(), found.tolist()

    def upsert(self, keys: Any = KEYS) -> None:
        rows = np.ones((len(keys), self.width), np.uint8)
        _emulated.table_upsert(self.table, self.device, 0, keys, rows, self.width)

    def pool(self) -> bytes:
        zeros = _emulated.Initializer("zeros", (0.0, 0.0), 0)
        bags = np.empty((len(KEYS), DIM), np.float32)
        offsets = np.arange(len(KEYS) + 1)
        _emulated.pool_storage(
            self.device, 0, self.table, zeros, self.dtype, KEYS, offsets, None, bags, False
        )
        return bags.tobytes()

    def update(self) -> int:
        step = _emulated.UpdateStep("sgd", {"lr": 0.1}, 1, 0)
        zeros = _emulated.Initializer("zeros", (0.0, 0.0), 0)
        gradients = np.ones((len(KEYS), DIM), np.float32)
        change = _emulated.update_storage(
            self.device, 0, self.table, step, zeros, self.dtype, KEYS, gradients, None, None, False
        )
        return int(change[0])


CALLS: tuple[Callable[[Opened], object], ...] = (
    Opened.find,
    Opened.pool,
    Opened.upsert,
    Opened.update,
)
NAMES = ["find", "pool", "upsert", "update"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", CALLS[1:], ids=NAMES[1:])
def test_out_of_device_memory_changes_nothing_and_reports_the_amount(
    call: Callable[[Opened], object], dtype: str
) -> None:
    num_failed = 0
    while True:
        opened = Opened(dtype)
        before = opened.find()
        opened.device.fail_from(num_failed)
        try:
            call(opened)
            break
        except DeviceMemoryError as error:
            failure = error
        assert failure.asked_bytes > failure.free_bytes == 0
        assert isinstance(failure, MemoryError)
        opened.device.fail_from(-1)
        assert opened.find() == before
        call(opened)
        num_failed += 1
    assert num_failed > 0


@pytest.mark.parametrize("call", CALLS[1:], ids=NAMES[1:])
def test_an_owner_of_unused_memory_is_requested_to_free_it_before_a_call_fails(
    call: Callable[[Opened], object],
) -> None:
    opened, expected = Opened(), Opened()
    num_asked = 0

    def give_back() -> bool:
        nonlocal num_asked
        num_asked += 1
        opened.device.fail_from(-1)
        return True

    for _ in range(2):
        opened.device.add_reclaimer(give_back)
    opened.device.fail_from(0)
    call(opened)
    call(expected)
    assert num_asked == 1, "one that was added twice is asked once, and memory is there then"
    assert opened.find() == expected.find()


@pytest.mark.parametrize("answer", [True, False, "raises"])
def test_a_call_fails_if_not_enough_memory_can_be_freed(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    opened = Opened()
    before = opened.find()
    num_asked = 0

    def give_back() -> bool:
        nonlocal num_asked
        num_asked += 1
        if answer == "raises":
            raise ValueError("torch is out of order")
        return bool(answer)

    opened.device.add_reclaimer(give_back)
    opened.device.fail_from(0)
    with pytest.raises(DeviceMemoryError):
        opened.upsert()
    assert num_asked == 1
    assert [str(each.exc_value) for each in told] == (
        ["torch is out of order"] if answer == "raises" else []
    )
    opened.device.fail_from(-1)
    assert opened.find() == before
    opened.upsert()


def test_a_memory_callback_may_run_python_while_others_wait_for_the_table() -> None:
    opened = Opened()
    is_asked, is_done = threading.Event(), threading.Event()

    def give_back() -> bool:
        is_asked.set()
        time.sleep(0.05)  # others get the interpreter, and wait for the table that this thread uses
        opened.device.fail_from(-1)
        return True

    def read() -> None:
        is_asked.wait(10)
        opened.find()
        is_done.set()

    opened.device.add_reclaimer(give_back)
    opened.device.fail_from(0)
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    opened.upsert()
    assert is_done.wait(10)
    reader.join(10)


def test_kernels_are_loaded_before_a_call_could_run_out_of_memory_for_one() -> None:
    opened = Opened()
    opened.device.fail_from(0)
    opened.find()
    opened.device.unload_kernels()
    with pytest.raises(DeviceMemoryError, match=r"starting kernel .*FindRows"):
        opened.find()
    opened.device.fail_from(-1)
    opened.find()


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_a_kernel_out_of_memory_leaves_whole_rows_or_loses_the_table(
    call: Callable[[Opened], object],
) -> None:
    outcomes = set()
    for number in range(200):
        opened = Opened()
        before = opened.find()
        opened.device.unload_kernels()
        opened.device.fail_from(number)
        try:
            call(opened)
        except DeviceMemoryError:
            opened.device.fail_from(-1)
            assert opened.find() == before, f"allocation {number} failed, and rows changed"
            outcomes.add("refused")
        except DeviceLostError:
            with pytest.raises(DeviceLostError):
                opened.find()
            outcomes.add("lost")
        else:
            break
    else:
        raise AssertionError("it asks for memory more than 200 times")
    assert "refused" in outcomes
    assert ("lost" in outcomes) == (call in (Opened.upsert, Opened.update))


def test_a_rejected_kernel_is_named_as_in_the_source() -> None:
    opened = Opened()
    opened.device.refuse_once(0)
    with pytest.raises(
        DeviceError, match=r"starting kernel sparring::hkv::FindRows<.*> was refused"
    ):
        opened.find()


def test_other_threads_run_while_a_dropped_table_waits_for_its_device() -> None:
    def check(seconds: float) -> None:
        opened = Opened()
        opened.device.slow_down(int(1000 * seconds))
        is_over = threading.Event()
        ticks: list[float] = []

        def tick() -> None:
            while not is_over.wait(0.01):
                ticks.append(time.monotonic())

        other = threading.Thread(target=tick, daemon=True)
        other.start()
        begin = time.monotonic()
        del opened.table
        end = time.monotonic()
        is_over.set()
        other.join(10)
        assert end - begin > 0.75 * seconds, "dropping it waited for the device"
        assert sum(begin + 0.05 < each < end - 0.05 for each in ticks) > 2

    check_with_deadlines(check, (0.4, 4.0))


def test_state_that_a_gpu_cannot_read_is_rejected() -> None:
    arrays = ArraySource(empty=np.empty, stream=lambda: 0)
    kernels = make_plugin_manager().kernels("emulated").factory(arrays)
    table = TableConfig("t", 4, dtype="float16", state_width=1, seed=3)
    update = BUILTIN_METHODS["rowwise_adagrad"]()
    choice = MethodChoice(update, update.hyperparameters(lr=0.1), 1)
    keys, found, gradients = np.arange(3), np.zeros(3, np.bool_), np.ones((3, 4), np.float32)
    rows = np.zeros(19, np.float16)[1:].reshape(3, 6)  # 2 bytes off a multiple of 4
    with pytest.raises(InvalidArgumentError, match=r"multiple of 4 bytes, found .* 2 "):
        kernels.initialize(rows, keys, found, table, None)
    with pytest.raises(InvalidArgumentError, match=r"multiple of 4 bytes, found .* 2 "):
        kernels.update(table, choice, keys, rows, gradients)
    assert not rows.any()
    kernels.initialize(rows, keys, found, TableConfig("t", 6, dtype="float16", seed=3), None)
    assert rows.any(), "without state they may begin at any element"


def test_kernels_let_the_device_request_memory_from_the_framework() -> None:
    handle = open_device("emulated").handle
    is_mine = True
    num_asked = 0

    def give_back() -> bool:
        nonlocal num_asked
        if is_mine:
            num_asked += 1
            handle.fail_from(-1)
        return is_mine

    arrays = ArraySource(empty=np.empty, stream=lambda: 0, release_unused=give_back)
    kernels = make_plugin_manager().kernels("emulated").factory(arrays)
    try:
        handle.fail_from(0)
        found = kernels.dedup(np.array([5, 5, 7]))
        storage = HkvStorage(TableConfig("t", DIM), HkvOptions(device="emulated"))
        handle.fail_from(0)
        storage.upsert(KEYS, np.ones((len(KEYS), DIM), np.float32))
    finally:
        handle.fail_from(-1)
        is_mine = False
    assert found.keys.tolist() == [5, 7]
    assert storage.size == len(KEYS)
    assert num_asked == 2


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_a_rejected_call_raises_an_error_only_for_that_call(
    call: Callable[[Opened], object],
) -> None:
    opened = Opened()
    before = opened.find()
    opened.device.refuse_once(0)
    with pytest.raises(DeviceError, match="was refused") as caught:
        call(opened)
    assert not isinstance(caught.value, DeviceLostError)
    assert opened.find() == before
    call(opened)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_after_any_rejected_call_rows_are_whole_or_the_table_is_lost(
    call: Callable[[Opened], object], dtype: str
) -> None:
    outcomes = set()
    for number in range(200):
        opened = Opened(dtype)
        before = opened.find()
        opened.device.refuse_once(number)
        try:
            call(opened)
        except DeviceLostError:
            with pytest.raises(DeviceLostError):
                opened.find()
            outcomes.add("lost")
        except DeviceError:
            opened.device.refuse_once(-1)
            assert opened.find() == before, f"call {number} was refused, and rows changed"
            outcomes.add("refused")
        else:
            opened.device.refuse_once(-1)
            break
    else:
        raise AssertionError("it reaches the device more than 200 times")
    assert "refused" in outcomes
    assert ("lost" in outcomes) == (call in (Opened.upsert, Opened.update))


@pytest.mark.parametrize("call", CALLS, ids=NAMES)
def test_every_call_reports_a_lost_device(call: Callable[[Opened], object]) -> None:
    opened = Opened()
    opened.device.break_down("an illegal memory access was encountered")
    for _ in range(2):
        with pytest.raises(DeviceLostError, match="illegal memory access"):
            call(opened)
    opened.device.break_down("")  # so that its memory can be given back


def test_persistent_errors_of_the_runtime_differ_from_errors_of_a_call() -> None:
    cuda = pytest.importorskip("sparring_hkv._cuda", reason="built without nvcc")
    illegal_address, launch_failure, assertion, lost = 700, 719, 710, 226
    invalid_value, out_of_memory, not_supported, too_many_resources = 1, 2, 801, 701
    assert all(cuda.stays(code) for code in (illegal_address, launch_failure, assertion))
    assert cuda.stays(lost) is None  # unknown to this code: the GPU is queried
    for code in (invalid_value, out_of_memory, not_supported, too_many_resources):
        assert cuda.stays(code) is False
