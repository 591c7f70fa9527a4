"""Options of ``hkv`` tables, and the rejection of wrong ones."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import sparring
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.options import HkvOptions

TABLE = TableConfig("table", 4)


def test_plugin_is_found_by_its_name() -> None:
    with sparring.open_storage("hkv", TABLE, capacity=100, policy="lru") as storage:
        assert isinstance(storage, HkvStorage)
        assert storage.capacity == 100
        assert storage.distribution.startswith("sparring-hkv ")


def test_importing_the_plugin_loads_no_native_library() -> None:
    program = "import sys, sparring_hkv.plugin; print('sparring_hkv._native' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "False"


@pytest.mark.parametrize(
    "options",
    [
        {"capacity": 0},
        {"capacity": -5},
        {"memory_bytes": 0},
        {"policy": "fifo"},
        {"hash_seed": -1},
        {"colour": "red"},
    ],
)
def test_wrong_options_are_rejected_by_name(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        sparring.open_storage("hkv", TABLE, **options)


@pytest.mark.parametrize("name", ["capacity", "memory_bytes", "hash_seed"])
@pytest.mark.parametrize("value", [True, "10", 10.0])
def test_values_that_only_look_like_integers_are_rejected(name: str, value: object) -> None:
    if name == "memory_bytes" and value == "10":
        value = "10 rows"  # bytes may be text, with a unit or none
    with pytest.raises(InvalidArgumentError, match=rf"{name}.*found {value!r}"):
        sparring.open_storage("hkv", TABLE, **{name: value})


def test_numpy_integers_are_accepted() -> None:
    with sparring.open_storage("hkv", TABLE, capacity=np.int64(100)) as storage:
        assert storage.capacity == 100


def test_more_rows_than_can_be_numbered_are_rejected_with_the_limit_and_the_fix() -> None:
    assert HkvOptions(capacity=2**32 - 1).capacity == 2**32 - 1
    for capacity in (2**32, 2**63, 2**70):
        with pytest.raises(InvalidArgumentError, match=rf"4294967295.*more ranks.*{capacity}"):
            sparring.open_storage("hkv", TABLE, capacity=capacity)


def test_memory_for_less_than_one_row_is_rejected_with_the_minimum() -> None:
    with pytest.raises(InvalidArgumentError, match=r"one row of 16 bytes.*found 100"):
        HkvStorage(TABLE, HkvOptions(memory_bytes=100))


def test_capabilities_follow_the_options() -> None:
    growing = HkvStorage(TABLE).capabilities
    assert (growing.bounded, growing.evicts, growing.evict, growing.touch) == (False,) * 4
    assert growing.native
    assert growing.concurrent_reads
    assert growing.scores == "none"
    cache = HkvStorage(TABLE, HkvOptions(memory_bytes=1 << 20, policy="custom")).capabilities
    assert (cache.bounded, cache.evicts, cache.evict, cache.touch) == (True,) * 4
    assert cache.scores == "given"
    assert HkvStorage(TABLE, HkvOptions(policy="lru")).capabilities.evicts is False


def test_unknown_and_unsupported_settings_are_rejected() -> None:
    storage = HkvStorage(TABLE, HkvOptions(policy="lru"))
    with pytest.raises(UnsupportedError, match="epoch_lru"):
        storage.set_option("epoch", 1)
    with pytest.raises(InvalidArgumentError, match="colour"):
        storage.set_option("colour", "red")


def test_epochs_do_not_decrease() -> None:
    storage = HkvStorage(TABLE, HkvOptions(policy="epoch_lfu"))
    storage.set_option("epoch", 7)
    with pytest.raises(InvalidArgumentError, match="found 6"):
        storage.set_option("epoch", 6)


def test_sizes_may_have_units() -> None:
    assert HkvOptions(memory_bytes="64 MiB").memory_bytes == 64 << 20  # type: ignore[arg-type]
