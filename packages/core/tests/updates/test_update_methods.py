"""Every update method against a transcription of its paper, at every SIMD level."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring import _native
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, PluginError
from sparring.kernels import functions as kernels
from sparring.storage.open import open_storage
from sparring.storage.update import update_rows
from sparring.updates.builtin import BUILTIN_METHODS, clip_gradients, keras_method
from sparring.updates.resolve import hypers_by_table, parse_hyper, resolve_method
from sparring_testing.references.update_references import REFERENCES, clip_gradient

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "sgd": [{"lr": 0.1}, {"lr": 0.1, "weight_decay": 0.02}],
    "momentum": [
        {"lr": 0.05, "momentum": 0.8},
        {"lr": 0.05, "nesterov": True, "weight_decay": 0.01},
    ],
    "adagrad": [
        {"lr": 0.1},
        {"lr": 0.1, "lr_decay": 0.03, "weight_decay": 0.01, "initial_accumulator_value": 0.2},
    ],
    "rowwise_adagrad": [
        {"lr": 0.1},
        {"lr": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.3, "eps": 1e-3},
    ],
    # The first moment is computed from the gradient if beta1 is below a half.
    "adam": [{"lr": 0.02}, {"lr": 0.02, "weight_decay": 0.1, "beta1": 0.4, "beta2": 0.9}],
    "sparse_adam": [{"lr": 0.02}, {"lr": 0.02, "beta1": 0.4, "beta2": 0.9, "eps": 0.1}],
    "adamw": [{"lr": 0.02}, {"lr": 0.02, "weight_decay": 0.1}],
    "partial_rowwise_adam": [{"lr": 0.02}, {"lr": 0.02, "weight_decay": 0.1}],
    "lamb": [{"lr": 0.02}, {"lr": 0.02, "weight_decay": 0.1}],
    "rmsprop": [{"lr": 0.01}, {"lr": 0.01, "alpha": 0.8, "weight_decay": 0.1}],
    "lion": [{"lr": 0.003}, {"lr": 0.003, "weight_decay": 0.1, "beta1": 0.5}],
    "ftrl": [
        {"lr": 0.1},
        {"lr": 0.1, "l1": 0.5, "l2": 0.1, "beta": 0.4, "initial_accumulator_value": 0.1},
    ],
    "group_ftrl": [{"lr": 0.1}, {"lr": 0.1, "l1": 0.1, "l2": 0.1, "l21": 0.4}],
}
KERAS: dict[str, dict[str, Any]] = {
    "keras_sgd": {"lr": 0.1, "weight_decay": 0.02},
    "keras_momentum": {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 0.02},
    "keras_adagrad": {"lr": 0.1, "eps": 1e-3, "weight_decay": 0.02},
    "keras_rmsprop": {"lr": 0.01, "alpha": 0.8, "weight_decay": 0.02},
    "keras_adam": {"lr": 0.02, "beta1": 0.7, "weight_decay": 0.02},
}
"""The tests of sparring-tf compare their results with Keras."""
CLIPS: list[dict[str, float]] = [{}, {"clip_value": 0.7}, {"clip_norm": 1.1}]


def cases() -> Iterator[Any]:
    for name, settings in SETTINGS.items():
        for number, setting in enumerate(settings):
            clip = CLIPS[(number + len(name)) % 3]
            yield pytest.param(name, {**setting, **clip}, id=f"{name}-{number}")


@cache
def method_of(name: str) -> UpdateMethod:
    return keras_method(name) if name in KERAS else resolve_method(name)


def train(
    name: str, given: dict[str, Any], dtype: str, dim: int, num_steps: int, seed: int = 3
) -> npt.NDArray[Any]:
    """Rows after steps on random subsets of rows."""
    method = method_of(name)
    hyper = parse_hyper(method, given)
    random = np.random.default_rng(seed)
    rows = np.empty((20, dim + method.state_width(dim)), dtype)
    rows[:, :dim] = random.standard_normal((20, dim))
    rows[:, dim:] = method.initial_state(dim, hyper, dtype)
    for step in range(1, num_steps + 1):
        keys = random.permutation(20)[: random.integers(1, 20)].astype(np.int64)
        part = rows[keys]
        gradients = random.standard_normal((len(keys), dim)).astype(dtype)
        update = UpdateRows(keys, part, part[:, :dim], part[:, dim:], gradients, step)
        method.update(update, hyper)
        rows[keys] = part
    return rows


def expected_embeddings(
    name: str, given: dict[str, Any], dtype: str, dim: int, num_steps: int, seed: int = 3
) -> npt.NDArray[np.float64]:
    hyper = parse_hyper(method_of(name), given).model_dump()
    random = np.random.default_rng(seed)
    embeddings = random.standard_normal((20, dim)).astype(dtype).astype(np.float64)
    states: list[dict[str, Any]] = [{} for _ in range(20)]
    for step in range(1, num_steps + 1):
        keys = random.permutation(20)[: random.integers(1, 20)]
        gradients = random.standard_normal((len(keys), dim)).astype(dtype).astype(np.float64)
        for key, gradient in zip(keys, gradients, strict=True):
            embeddings[key] = REFERENCES[name](
                embeddings[key], states[key], clip_gradient(gradient, hyper), step, hyper
            )
    return embeddings


def test_every_method_has_a_reference_and_settings() -> None:
    assert set(BUILTIN_METHODS) == set(REFERENCES) == set(SETTINGS)


@pytest.mark.parametrize(("name", "given"), list(cases()))
@pytest.mark.parametrize("dim", [1, 7, 64])
def test_a_method_agrees_with_its_paper(name: str, given: dict[str, Any], dim: int) -> None:
    expected = expected_embeddings(name, given, "float64", dim, 60)
    found = train(name, given, "float64", dim, 60)[:, :dim]
    assert np.abs(expected).max() > 1e-3  # it does not compare zeros
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


CLIPS_BOTH = {"clip_value": 0.7, "clip_norm": 1.1}
# dim 7: the sum of squares of elements clipped to 0.7 is above 1.1² in some rows, but not in all.


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_clipped_by_value_and_then_by_norm(name: str) -> None:
    given = {**SETTINGS[name][1], **CLIPS_BOTH}
    expected = expected_embeddings(name, given, "float64", 7, 40)
    found = train(name, given, "float64", 7, 40)[:, :7]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("given", [*CLIPS, CLIPS_BOTH])
def test_methods_of_plugins_get_clipped_gradients(given: dict[str, float]) -> None:
    gradients = np.random.default_rng(0).standard_normal((50, 7))
    hyper = HyperParameters(**given)
    expected = [clip_gradient(each, hyper.model_dump()) for each in gradients]
    assert bool(given) == bool((gradients != expected).any())
    clip_gradients(gradients, hyper)
    np.testing.assert_allclose(gradients, expected, rtol=1e-14)


@pytest.mark.parametrize(("name", "given"), list(cases()))
def test_float32_stays_close_to_the_reference(name: str, given: dict[str, Any]) -> None:
    # Lion updates with full steps, so a sign that depends on rounding has twice the effect.
    steps, tolerance = (20, 1e-5) if name == "lion" else (50, 2e-4)
    expected = expected_embeddings(name, given, "float32", 16, steps)
    found = train(name, given, "float32", 16, steps)[:, :16]
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [*SETTINGS, *KERAS])
def test_all_simd_levels_give_the_same_bits(name: str, dtype: str) -> None:
    before = kernels.simd_level()
    chosen = KERAS[name] if name in KERAS else SETTINGS[name][1]
    given = {**chosen, "clip_norm": 1.0, "clip_value": 0.9}
    results = {}
    try:
        for level in _native.simd_levels():
            kernels.set_simd_level(level)
            results[level] = [train(name, given, dtype, dim, 5) for dim in (1, 5, 31, 64, 130)]
    finally:
        kernels.set_simd_level(before)
    first = results["portable"]
    for level, rows in results.items():
        for one, other in zip(first, rows, strict=True):
            assert one.tobytes() == other.tobytes(), level


@pytest.mark.parametrize("name", SETTINGS)
def test_large_calls_give_the_same_bits_on_several_threads(name: str) -> None:
    method = resolve_method(name)
    hyper = parse_hyper(method, SETTINGS[name][1])
    random = np.random.default_rng(5)
    dim = 8
    rows = random.random((5000, dim + method.state_width(dim)), np.float32)
    gradients = random.standard_normal((5000, dim)).astype(np.float32)
    keys = np.arange(5000)
    whole = rows.copy()
    method.update(
        UpdateRows(keys, whole, whole[:, :dim], whole[:, dim:], gradients.copy(), 3), hyper
    )
    for begin in range(0, 5000, 617):
        part = rows[begin : begin + 617]
        chosen = keys[begin : begin + 617]
        given = gradients[begin : begin + 617].copy()
        method.update(UpdateRows(chosen, part, part[:, :dim], part[:, dim:], given, 3), hyper)
    assert rows.tobytes() == whole.tobytes()


def test_gradients_stay_as_they_are() -> None:
    method = resolve_method("adam")
    rows = np.ones((3, 12), np.float32)
    gradients = np.full((3, 4), 9.0, np.float32)
    hyper = parse_hyper(method, {"clip_value": 1.0, "weight_decay": 0.5})
    method.update(UpdateRows(np.arange(3), rows, rows[:, :4], rows[:, 4:], gradients, 1), hyper)
    assert (gradients == 9.0).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lrr": 0.1}, "no hyper-parameter 'lrr'; did you mean 'lr'"),
        ({"lr": -1.0}, "greater than or equal to 0, found -1.0"),
        ({"lr": float("nan")}, "finite number, found nan"),
        ({"beta1": 1.0}, "less than 1, found 1.0"),
        ({"eps": "small"}, "valid number.*found 'small'"),
    ],
)
def test_hyper_parameters_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_hyper(resolve_method("adam"), given)


def test_an_unknown_method_is_named_with_the_nearest_one() -> None:
    with pytest.raises(PluginError, match="update method 'row_adagrad' is unknown; did you mean"):
        resolve_method("row_adagrad")


def test_rows_of_another_width_are_rejected() -> None:
    spec = _native.UpdateSpec("adam", "float32", 4, {"lr": 0.1}, 1)
    keys, gradients = np.arange(2), np.zeros((2, 4), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"rows of 48 bytes .*found 32"):
        _native.update_rows(spec, keys, np.zeros((2, 8), np.float32), gradients)
    with pytest.raises(InvalidArgumentError, match="gradients"):
        _native.update_rows(spec, keys, np.zeros((2, 12), np.float32), gradients[:, :3].copy())
    with pytest.raises(InvalidArgumentError, match="step must be at least 1"):
        _native.UpdateSpec("adam", "float32", 4, {"lr": 0.1}, 0)


def test_a_storage_of_one_method_rejects_the_update_of_another_with_its_width() -> None:
    storage = open_storage("memory", TableConfig("t", 2).with_state(4, "adam"))
    storage.upsert([1], np.ones((1, 6), np.float32))
    gradients = np.ones((1, 2), np.float32)
    for name in ("lamb", "sgd"):
        method = resolve_method(name)
        choice = MethodChoice(method, parse_hyper(method, {}), 1)
        with pytest.raises(
            InvalidArgumentError, match=rf"'{name}' requires .*has 4 of adam; open it"
        ):
            update_rows(storage, [1], gradients, choice)
    assert (storage.find([1]).rows == 1).all()
    method = resolve_method("adam")
    assert (
        update_rows(storage, [1], gradients, MethodChoice(method, parse_hyper(method, {}), 1)) == 1
    )


def test_hyper_parameters_of_one_table_override_the_global_ones() -> None:
    method = resolve_method("sgd")
    hypers = hypers_by_table(method, ["one", "two"], {"lr": 0.5}, {"two": {"lr": 0.25}})
    assert [hypers["one"].lr, hypers["two"].lr] == [0.5, 0.25]
    with pytest.raises(InvalidArgumentError, match="updates no table 'too'; did you mean 'two'"):
        hypers_by_table(method, ["one", "two"], {}, {"too": {"lr": 0.25}})
