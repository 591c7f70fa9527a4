"""Reference implementations of the update methods: float64, row by row, from the formulas of the papers.

Each takes (w, state, g, t, h): the embedding (dim,), a dict of arrays with the state of the row, the
gradient (dim,), the step number and the hyperparameters. It updates the state and returns the new
embedding. The implementations share no code with the tested methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
State = dict[str, Any]
Reference = Callable[[Vector, State, Vector, int, dict[str, Any]], Vector]


def sgd(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    return w - h["lr"] * (g + h["weight_decay"] * w)  # type: ignore[no-any-return]


def momentum(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    g = g + h["weight_decay"] * w
    state["b"] = h["momentum"] * state.get("b", 0.0) + g
    direction = g + h["momentum"] * state["b"] if h["nesterov"] else state["b"]
    return w - h["lr"] * direction  # type: ignore[no-any-return]


def adagrad(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    g = g + h["weight_decay"] * w
    state["s"] = state.get("s", h["initial_accumulator_value"]) + np.square(g)
    rate = h["lr"] / (1.0 + (t - 1) * h["lr_decay"])
    return w - rate * g / (np.sqrt(state["s"]) + h["eps"])  # type: ignore[no-any-return]


def rowwise_adagrad(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    g = g + h["weight_decay"] * w
    state["s"] = state.get("s", h["initial_accumulator_value"]) + np.square(g).mean()
    return w - h["lr"] / (np.sqrt(state["s"]) + h["eps"]) * g  # type: ignore[no-any-return]


def _moments(state: State, g: Vector, second: Any, t: int, h: dict[str, Any]) -> tuple[Any, Any]:
    state["m"] = h["beta1"] * state.get("m", 0.0) + (1 - h["beta1"]) * g
    state["v"] = h["beta2"] * state.get("v", 0.0) + (1 - h["beta2"]) * second
    return state["m"] / (1 - h["beta1"] ** t), state["v"] / (1 - h["beta2"] ** t)


def adam(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    g = g + h["weight_decay"] * w
    first, second = _moments(state, g, g * g, t, h)
    moved: Vector = w - h["lr"] * first / (np.sqrt(second) + h["eps"])
    return moved


def sparse_adam(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    _moments(state, g, g * g, t, h)
    step_size = h["lr"] * np.sqrt(1 - h["beta2"] ** t) / (1 - h["beta1"] ** t)
    moved: Vector = w - step_size * state["m"] / (np.sqrt(state["v"]) + h["eps"])
    return moved


def adamw(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    first, second = _moments(state, g, g * g, t, h)
    shrunk = w - h["lr"] * h["weight_decay"] * w
    moved: Vector = shrunk - h["lr"] * first / (np.sqrt(second) + h["eps"])
    return moved


def partial_rowwise_adam(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    first, second = _moments(state, g, float(np.dot(g, g)) / len(g), t, h)
    shrunk = w - h["lr"] * h["weight_decay"] * w
    moved: Vector = shrunk - h["lr"] * first / (np.sqrt(second) + h["eps"])
    return moved


def lamb(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    first, second = _moments(state, g, g * g, t, h)
    ratio = first / (np.sqrt(second) + h["eps"]) + h["weight_decay"] * w
    length, stride = np.linalg.norm(w), np.linalg.norm(ratio)
    trust = length / stride if length > 0 and stride > 0 else 1.0
    moved: Vector = w - h["lr"] * trust * ratio
    return moved


def rmsprop(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    g = g + h["weight_decay"] * w
    state["s"] = h["alpha"] * state.get("s", 0.0) + (1 - h["alpha"]) * g * g
    moved: Vector = w - h["lr"] * g / (np.sqrt(state["s"]) + h["eps"])
    return moved


def lion(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    before = state.get("m", np.zeros_like(g))
    direction = np.sign(h["beta1"] * before + (1 - h["beta1"]) * g)
    state["m"] = h["beta2"] * before + (1 - h["beta2"]) * g
    return w - h["lr"] * h["weight_decay"] * w - h["lr"] * direction  # type: ignore[no-any-return]


def _ftrl_pull(w: Vector, state: State, g: Vector, h: dict[str, Any]) -> tuple[Vector, Vector]:
    n = state.get("n", np.full_like(g, h["initial_accumulator_value"]))
    sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / h["lr"]
    state["z"] = state.get("z", np.zeros_like(g)) + g - sigma * w
    state["n"] = n + g**2
    z = state["z"]
    pull = np.where(np.abs(z) <= h["l1"], 0.0, -(z - np.sign(z) * h["l1"]))
    return pull, (h["beta"] + np.sqrt(state["n"])) / h["lr"] + h["l2"]


def ftrl(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    pull, curve = _ftrl_pull(w, state, g, h)
    return pull / curve


def group_ftrl(w: Vector, state: State, g: Vector, t: int, h: dict[str, Any]) -> Vector:
    pull, curve = _ftrl_pull(w, state, g, h)
    norm = np.linalg.norm(pull)
    share = max(0.0, 1 - h["l21"] * np.sqrt(len(g)) / norm) if norm > 0 else 0.0
    moved: Vector = share * pull / curve
    return moved


REFERENCES: dict[str, Reference] = {
    each.__name__: each
    for each in (
        sgd,
        momentum,
        adagrad,
        rowwise_adagrad,
        adam,
        sparse_adam,
        adamw,
        partial_rowwise_adam,
        lamb,
        rmsprop,
        lion,
        ftrl,
        group_ftrl,
    )
}


def clip_gradient(g: Vector, h: dict[str, Any]) -> Vector:
    """Clips a gradient by value, then by norm."""
    if h["clip_value"]:
        g = np.maximum(np.minimum(g, h["clip_value"]), -h["clip_value"])
    norm = float(np.sqrt((g * g).sum()))
    if h["clip_norm"] and norm > h["clip_norm"]:
        g = g / norm * h["clip_norm"]
    return g
