"""Update methods on a storage: what they do to rows, to new keys, and when they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring.storage.contract import Storage
from sparring.storage.memory import MemoryStorage
from sparring.table import TableConfig
from sparring.testing.samples import EXTREME_KEYS, MakeStorage, contents, distinct_keys
from sparring.updates import BUILTIN_METHODS, MethodChoice
from sparring.updates.resolving import hyper_from

__all__ = ["UpdateTests"]

_METHODS = ("sgd", "rowwise_adagrad", "adam")


def _choice(name: str, step: int = 1, **hyper: Any) -> MethodChoice:
    method = BUILTIN_METHODS[name]()
    return MethodChoice(method, hyper_from(method, {"lr": 0.1, **hyper}), step)


def _table(name: str, dim: int = 5) -> TableConfig:
    width = BUILTIN_METHODS[name]().state_width(dim)
    return TableConfig("kit", dim).with_state(width, name)


def _assert_same(storage: Storage, twin: Storage) -> None:
    found, expected = contents(storage), contents(twin)
    differing = [
        key
        for key in found.keys() | expected.keys()
        if key not in found or key not in expected or found[key].data != expected[key].data
    ]
    assert not differing, f"{len(differing)} keys differ, {differing[:3]} among them"


class UpdateTests:
    """`Storage.update`."""

    @pytest.mark.parametrize("method", _METHODS)
    def test_update_leaves_the_rows_that_find_and_upsert_would(
        self, new_storage: MakeStorage, rng: np.random.Generator, method: str
    ) -> None:
        table = _table(method)
        storage, twin = new_storage(table), MemoryStorage(table)
        pool = np.concatenate([EXTREME_KEYS, distinct_keys(rng, 300)])
        pool = np.unique(pool)
        for step in range(1, 6):
            keys = rng.permutation(pool)[: rng.integers(1, len(pool))]
            gradients = rng.standard_normal((len(keys), 5)).astype(np.float32)
            for each in (storage, twin):
                assert each.update(keys, gradients, _choice(method, step)) == len(keys)
            _assert_same(storage, twin)

    def test_update_of_many_keys_changes_each_once(self, new_storage: MakeStorage) -> None:
        table = _table("sgd", 3)
        storage = new_storage(table)
        keys = np.arange(20_000) * 7 - 50_000
        storage.upsert(keys[::2], np.ones((10_000, 3), np.float32))
        storage.update(keys[::2], np.full((10_000, 3), 2.0, np.float32), _choice("sgd", lr=0.5))
        assert bool((storage.find(keys[::2]).rows == 0.0).all())
        assert storage.size == 10_000

    def test_new_keys_of_an_update_start_from_their_initial_row(
        self, new_storage: MakeStorage
    ) -> None:
        table = TableConfig("kit", 4, initializer={"kind": "constant", "value": 3.0})
        storage = new_storage(table.with_state(1, "rowwise_adagrad"))
        choice = _choice("rowwise_adagrad", lr=1.0, initial_accumulator_value=0.0, eps=0.0)
        storage.update([7], np.full((1, 4), 2.0, np.float32), choice)
        assert storage.find([7]).rows.tolist() == [[2.0, 2.0, 2.0, 2.0, 4.0]]

    def test_update_of_no_keys_changes_nothing(self, new_storage: MakeStorage) -> None:
        storage = new_storage(_table("sgd"))
        storage.upsert([1], np.ones((1, 5), np.float32))
        assert storage.update([], np.empty((0, 5), np.float32), _choice("sgd")) == 0
        assert storage.size == 1

    @pytest.mark.parametrize(
        ("keys", "gradients", "method"),
        [
            pytest.param([1, 1], np.ones((2, 5), np.float32), "sgd", id="duplicate keys"),
            pytest.param([1, 2], np.ones((1, 5), np.float32), "sgd", id="too few gradients"),
            pytest.param([1], np.ones((1, 4), np.float32), "sgd", id="another dim"),
            pytest.param([1], np.ones((1, 5), np.float64), "sgd", id="another dtype"),
            pytest.param([1], np.ones((1, 5), np.float32), "adam", id="another state"),
        ],
    )
    def test_refused_update_changes_nothing(
        self, new_storage: MakeStorage, keys: list[int], gradients: Any, method: str
    ) -> None:
        storage = new_storage(_table("sgd"))
        storage.upsert([1], np.ones((1, 5), np.float32))
        before = contents(storage)
        with pytest.raises(InvalidArgumentError):
            storage.update(keys, gradients, _choice(method))
        assert contents(storage) == before

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_update_with_gradients_that_are_not_finite_changes_nothing(
        self, new_storage: MakeStorage, value: float
    ) -> None:
        storage = new_storage(_table("sgd"))
        storage.upsert([1], np.ones((1, 5), np.float32))
        before = contents(storage)
        gradients = np.ones((2, 5), np.float32)
        gradients[1, 3] = value
        with pytest.raises(NonFiniteGradientError):
            storage.update([1, 2], gradients, _choice("sgd"))
        assert contents(storage) == before
