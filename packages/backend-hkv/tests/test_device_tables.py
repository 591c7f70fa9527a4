"""Several tables of a device in one call have the same bits as separate calls for each table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.adapter import BUILTIN_METHODS
from sparring.contracts import ArraySource, MethodChoice, StorageLookup, StorageUpdate, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_hkv.backend import HkvStorage
from sparring_hkv.devices import open_device
from sparring_hkv.options import HkvOptions

_emulated = pytest.importorskip(
    "sparring_hkv._emulated", reason="built without -DSPARRING_HKV_EMULATED=ON"
)

METHOD = BUILTIN_METHODS["rowwise_adagrad"]()
HYPER = METHOD.hyperparameters(lr=0.1)
STATE = np.full(1, 0.5, np.float32)
DIM, BAGS, IDS = 8, 50, 4


@pytest.fixture(params=[0, 1, 5])
def device(request: pytest.FixtureRequest) -> Any:
    _emulated.set_schedule(seed=request.param)
    yield (
        make_plugin_manager()
        .kernels("emulated")
        .factory(ArraySource(empty=np.empty, stream=lambda: 0))
    )
    _emulated.set_schedule(seed=0)


def opened(count: int, **options: Any) -> list[HkvStorage]:
    return [
        HkvStorage(
            TableConfig(f"t{number}", DIM, seed=number).with_state(1, METHOD.name),
            HkvOptions(device="emulated", **options),
        )
        for number in range(count)
    ]


def ids_of(count: int, step: int) -> list[Any]:
    random = np.random.default_rng(step)
    # Tables share ids, and one has none.
    return [random.zipf(1.2, 0 if number == 1 else BAGS * IDS) % 200 for number in range(count)]


def offsets_of(ids: Any) -> Any:
    return np.arange(0, BAGS * IDS + 1, IDS) if len(ids) else np.zeros(BAGS + 1, np.int64)


def step_alone(device: Any, storages: Any, ids: Any, step: int) -> Any:
    results = []
    for storage, own in zip(storages, ids, strict=True):
        offsets = offsets_of(own)
        bags = device.pool_storage(storage, storage.table, own, offsets)
        found = device.dedup(own)
        sums = device.pool_backward(np.tanh(bags), found.inverse, offsets, len(found.keys))
        assert device.is_finite(sums)
        choice = MethodChoice(METHOD, HYPER, step)
        change = device.update_storage(storage, choice, found.keys, sums, STATE)
        results.append((bags, found.keys, sums, change.num_new, change.evicted.count))
    return results


def step_together(device: Any, storages: Any, ids: Any, step: int) -> Any:
    offsets = [offsets_of(own) for own in ids]
    bags = device.pool_tables(
        [
            StorageLookup(storage, storage.table, own, each)
            for storage, own, each in zip(storages, ids, offsets, strict=True)
        ]
    )
    found = device.dedup_tables(ids)
    joined = np.concatenate(
        [[0], *(each[1:] + begin for each, begin in zip(offsets, found.offsets, strict=False))]
    )
    num_bad = np.zeros(1, np.int64)
    sums = device.pool_backward(
        np.tanh(np.concatenate(bags)), found.inverse, joined, len(found.keys), num_bad=num_bad
    )
    choice = MethodChoice(METHOD, HYPER, step)
    changes = device.update_tables(
        [
            StorageUpdate(storage, choice, found.keys[found.of(i)], sums[found.of(i)].copy(), STATE)
            for i, storage in enumerate(storages)
        ],
        num_bad,
    )
    return [
        (bags[i], found.keys[found.of(i)], sums[found.of(i)], each.num_new, each.evicted.count)
        for i, each in enumerate(changes)
    ]


@pytest.mark.parametrize(
    "options", [{}, {"capacity": 120, "policy": "lru"}], ids=["grows", "evicts"]
)
def test_tables_looked_up_together_equal_separate_tables(
    device: Any, options: dict[str, Any]
) -> None:
    alone, together = opened(5, **options), opened(5, **options)
    num_new = num_evicted = 0
    for step in range(1, 5):
        ids = ids_of(5, step)
        expected = step_alone(device, alone, ids, step)
        found = step_together(device, together, ids, step)
        for own, known in zip(found, expected, strict=True):
            for array, other in zip(own[:3], known[:3], strict=True):
                assert array.tobytes() == other.tobytes()
            assert own[3:] == known[3:]
            num_new += own[3]
            num_evicted += own[4]
    assert num_new - num_evicted == sum(storage.size for storage in together)
    assert (num_evicted > 0) == bool(options)
    for one, other in zip(alone, together, strict=True):
        assert one.size == other.size
        keys = np.arange(200)
        assert one.find(keys).rows.tobytes() == other.find(keys).rows.tobytes()


def test_many_tables_take_the_launches_and_waits_of_one() -> None:
    device: Any = (
        make_plugin_manager()
        .kernels("emulated")
        .factory(ArraySource(empty=np.empty, stream=lambda: 0))
    )
    handle = open_device("emulated").handle
    works = {}
    for count in (1, 26):
        storages, ids = opened(count), [ids_of(1, 9)[0]] * count
        for step in (1, 2, 3):
            before = handle.work
            step_together(device, storages, ids, step)
            works[count] = {name: n - before[name] for name, n in handle.work.items()}
    one, many = works[1], works[26]
    # docs/explanation/gpu-table.md
    assert (one["launches"], one["copies"], one["waits"]) == (14, 4, 2)
    # Two more for sums over more than a thousand occurrences, and three copies of their arguments.
    assert (many["launches"], many["copies"], many["waits"]) == (16, 7, 2)
    assert many["lasting_allocations"] == 0


def test_non_finite_sums_change_no_table(device: Any) -> None:
    storages, keys = opened(3), np.arange(10)
    choice = MethodChoice(METHOD, HYPER, 1)
    values = np.ones((2000, DIM), np.float32)
    # A long segment and a short one, and a wide row and a narrow one.
    for place, bad in ((0, np.inf), (1999, np.nan), (700, 3e38)):
        for width in (DIM, 3):
            given = values[:, :width].copy()
            given[place] = bad
            num_bad = np.zeros(1, np.int64)
            segments = np.where(np.arange(2000) < 1990, 0, 1)
            sums = device.pool_backward(given, segments, np.arange(2001), 10, num_bad=num_bad)
            is_finite = bool(np.isfinite(sums).all())
            assert (num_bad[0] == 0) == is_finite
    num_bad[0] = 1
    ones = np.ones((10, DIM), np.float32)
    updates = [StorageUpdate(storage, choice, keys, ones.copy(), STATE) for storage in storages]
    assert device.update_tables(updates, num_bad) is None
    assert [storage.size for storage in storages] == [0, 0, 0]
    changes = device.update_tables(updates, np.zeros(1, np.int64))
    assert [each.num_new for each in changes] == [10, 10, 10]


def test_new_keys_are_admitted_table_by_table(device: Any) -> None:
    storages, keys = opened(2), np.arange(10)
    choice, ones = MethodChoice(METHOD, HYPER, 1), np.ones((10, DIM), np.float32)

    def even(asked: Any) -> Any:
        return asked % 2 == 0

    def fails(asked: Any) -> Any:
        raise KeyError("not known")

    changes = device.update_tables(
        [
            StorageUpdate(storage, choice, keys, ones.copy(), STATE, admit)
            for storage, admit in zip(storages, (even, None), strict=True)
        ]
    )
    assert [each.num_new for each in changes] == [5, 10]
    more = np.arange(100, 110)
    done: list[Any] = []
    with pytest.raises(KeyError, match="not known"):
        device.update_tables(
            [
                StorageUpdate(storages[1], choice, more, ones.copy(), STATE),
                StorageUpdate(storages[0], choice, more, ones.copy(), STATE, fails),
            ],
            changes=done,
        )
    # The previous table has changed; this one has not.
    assert [each.num_new for each in done] == [10]
    assert [storage.size for storage in storages] == [5, 20]
    assert storages[1].find(more).found.all()


def test_a_table_occurs_once_in_an_update_and_often_in_a_lookup(device: Any) -> None:
    (storage,), keys = opened(1), np.arange(3)
    choice = MethodChoice(METHOD, HYPER, 1)
    update = StorageUpdate(storage, choice, keys, np.ones((3, DIM), np.float32), STATE)
    with pytest.raises(InvalidArgumentError, match="twice in one"):
        device.update_tables([update, update])
    device.update_tables([update])
    lookup = StorageLookup(storage, storage.table, keys, np.arange(4))
    first, second, none = device.pool_tables(
        [lookup, lookup, StorageLookup(None, storage.table, keys, np.arange(4))]
    )
    assert first.tobytes() == second.tobytes() != none.tobytes()
    assert device.update_tables([]) == []
    assert device.pool_tables([]) == []
