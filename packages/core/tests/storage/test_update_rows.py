"""`update_rows` rejects invalid updates before any row has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.references.samples import read_contents

TABLE = TableConfig("t", 5).with_state(0, "sgd")


@pytest.fixture(params=["memory", "hkv"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "hkv":
        pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    return str(request.param)


def _choice(name: str) -> MethodChoice:
    method = resolve_method(name)
    return MethodChoice(method, parse_hyper(method, {"lr": 0.1}), 1)


def test_update_of_no_keys_changes_nothing(backend: str) -> None:
    storage = open_storage(backend, TABLE)
    storage.upsert([1], np.ones((1, 5), np.float32))
    assert update_rows(storage, [], np.empty((0, 5), np.float32), _choice("sgd")) == 0
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
def test_rejected_update_changes_nothing(
    backend: str, keys: list[int], gradients: Any, method: str
) -> None:
    storage = open_storage(backend, TABLE)
    storage.upsert([1], np.ones((1, 5), np.float32))
    before = read_contents(storage)
    with pytest.raises(InvalidArgumentError):
        update_rows(storage, keys, gradients, _choice(method))
    assert read_contents(storage) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_update_with_non_finite_gradients_changes_nothing(backend: str, value: float) -> None:
    storage = open_storage(backend, TABLE)
    storage.upsert([1], np.ones((1, 5), np.float32))
    before = read_contents(storage)
    gradients = np.ones((2, 5), np.float32)
    gradients[1, 3] = value
    with pytest.raises(NonFiniteGradientError):
        update_rows(storage, [1, 2], gradients, _choice("sgd"))
    assert read_contents(storage) == before
