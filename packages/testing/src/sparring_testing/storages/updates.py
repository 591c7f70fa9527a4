"""Tests of update methods on a storage, through its native handle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring import update_rows
from sparring.adapter import BUILTIN_METHODS, MemoryStorage, parse_hyper
from sparring.contracts import MethodChoice, Storage, TableConfig
from sparring_testing.references.samples import (
    EXTREME_KEYS,
    MakeStorage,
    distinct_keys,
    read_contents,
)

__all__ = ["UpdateTests"]

_METHODS = ("sgd", "rowwise_adagrad", "adam")


def _choice(name: str, step: int = 1, **hyper: Any) -> MethodChoice:
    method = BUILTIN_METHODS[name]()
    return MethodChoice(method, parse_hyper(method, {"lr": 0.1, **hyper}), step)


def _table(name: str, dim: int = 5) -> TableConfig:
    width = BUILTIN_METHODS[name]().state_width(dim)
    return TableConfig("kit", dim).with_state(width, name)


def _assert_same(storage: Storage, other: Storage) -> None:
    found, expected = read_contents(storage), read_contents(other)
    differing = [
        key
        for key in found.keys() | expected.keys()
        if key not in found or key not in expected or found[key].data != expected[key].data
    ]
    assert not differing, f"{len(differing)} keys differ, for example {differing[:3]}"


class UpdateTests:
    """`update_rows` changes rows and creates new ones."""

    @pytest.mark.parametrize("method", _METHODS)
    def test_update_equals_find_and_upsert(
        self, new_storage: MakeStorage, rng: np.random.Generator, method: str
    ) -> None:
        table = _table(method)
        storage, other = new_storage(table), MemoryStorage(table)
        pool = np.concatenate([EXTREME_KEYS, distinct_keys(rng, 300)])
        pool = np.unique(pool)
        for step in range(1, 6):
            keys = rng.permutation(pool)[: rng.integers(1, len(pool))]
            gradients = rng.standard_normal((len(keys), 5)).astype(np.float32)
            for each in (storage, other):
                updated = update_rows(each, keys, gradients, _choice(method, step))
                assert updated == len(keys)
            _assert_same(storage, other)

    def test_update_of_many_keys_changes_each_once(self, new_storage: MakeStorage) -> None:
        table = _table("sgd", 3)
        storage = new_storage(table)
        keys = np.arange(20_000) * 7 - 50_000
        storage.upsert(keys[::2], np.ones((10_000, 3), np.float32))
        update_rows(
            storage, keys[::2], np.full((10_000, 3), 2.0, np.float32), _choice("sgd", lr=0.5)
        )
        assert bool((storage.find(keys[::2]).rows == 0.0).all())
        assert storage.size == 10_000

    def test_new_keys_of_an_update_start_from_their_initial_row(
        self, new_storage: MakeStorage
    ) -> None:
        table = TableConfig("kit", 4, initializer={"kind": "constant", "value": 3.0})
        storage = new_storage(table.with_state(1, "rowwise_adagrad"))
        choice = _choice("rowwise_adagrad", lr=1.0, initial_accumulator_value=0.0, eps=0.0)
        update_rows(storage, [7], np.full((1, 4), 2.0, np.float32), choice)
        assert storage.find([7]).rows.tolist() == [[2.0, 2.0, 2.0, 2.0, 4.0]]
