"""Pytrees in a snapshot, next to the rows of tables: arrays by name, no pickle.

params={"w": array}   ──►   values {"params": [["['w']", "float32", [3, 2]]]}, arrays {"params.0": …}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from sparring import State, open_snapshot
from sparring.errors import InvalidArgumentError

__all__ = ["STATE_NAME", "Part", "check_state", "gather_state", "restore_state"]

STATE_NAME = "jax"
"""Of this state in a snapshot."""

Part: TypeAlias = Any
"""A pytree, or what has one: `HasState`."""


@runtime_checkable
class HasState(Protocol):
    """Keeps a pytree of its own, as `Optimizer` does."""

    def state_tree(self) -> Any:
        """The pytree."""

    def set_state_tree(self, tree: Any) -> None:
        """Takes it back."""


def gather_state(parts: Mapping[str, Part]) -> State:
    """Copies pytrees for `StepContainer.save`.

    Raises:
        InvalidArgumentError: a leaf is no array of numbers.
    """
    values: dict[str, list[Any]] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, part in parts.items():
        values[name] = []
        for number, (path, leaf) in enumerate(_leaves(part)):
            array = _array(leaf, f"{name}{path}")
            values[name].append([path, array.dtype.name, list(array.shape)])
            arrays[f"{name}.{number}"] = array
    return State(values, arrays)


def check_state(url: str, parts: Mapping[str, Part]) -> None:
    """Refuses a snapshot that has nothing for parts, or parts of another shape, before it is loaded.

    Raises:
        InvalidArgumentError: naming the first difference.
        SnapshotError: there is no such snapshot, or it is damaged.
    """
    snapshot = open_snapshot(url)
    if STATE_NAME not in snapshot.state_names():
        raise InvalidArgumentError(
            f"snapshot {url} has no parts of JAX, as {', '.join(parts)}; it has the state "
            f"{', '.join(snapshot.state_names()) or 'none'}: another framework saved it. load(url) "
            "takes its rows alone"
        )
    saved = snapshot.state(STATE_NAME)
    _match_state(State(saved.values, saved.arrays), parts)


def restore_state(state: State | None, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Pytrees like those in `parts`, with the values that were saved; those that have a state of their
    own take it back.

    Raises:
        InvalidArgumentError: as `check_state`.
    """
    restored = _match_state(state or State({}), parts)
    for name, part in parts.items():
        if isinstance(part, HasState):
            part.set_state_tree(restored.pop(name))
    return restored


def _match_state(state: State, parts: Mapping[str, Part]) -> dict[str, Any]:
    result = {}
    for name, part in parts.items():
        saved = state.values.get(name)
        if saved is None:
            raise InvalidArgumentError(
                f"this snapshot has no part {name!r}; it has {', '.join(state.values) or 'none'}",
                name=name,
            )
        like = _leaves(part)
        wanted = [[path, *_shape(leaf, f"{name}{path}")] for path, leaf in like]
        if saved != wanted:
            pairs = zip(
                [*saved, *[None] * len(wanted)], [*wanted, *[None] * len(saved)], strict=False
            )
            theirs, ours = next(pair for pair in pairs if pair[0] != pair[1])
            raise InvalidArgumentError(
                f"part {name!r} of this snapshot has {_describe_leaf(theirs)} where "
                f"{_describe_leaf(ours)} was given; "
                "make it as it was",
                name=name,
            )
        leaves = [
            _like(state.arrays[f"{name}.{number}"], leaf) for number, (_, leaf) in enumerate(like)
        ]
        result[name] = jax.tree.unflatten(jax.tree.structure(_tree(part)), leaves)
    return result


def _tree(part: Part) -> Any:
    return part.state_tree() if isinstance(part, HasState) else part


def _leaves(part: Part) -> list[tuple[str, Any]]:
    found = jax.tree_util.tree_flatten_with_path(_tree(part))[0]
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in found]


def _shape(leaf: Any, place: str) -> tuple[str, list[int]]:
    array = _array(leaf, place)
    return array.dtype.name, list(array.shape)


def _array(leaf: Any, place: str) -> npt.NDArray[Any]:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise InvalidArgumentError(
            f"{place} is a key of jax.random; save jax.random.key_data(key), and wrap it after loading"
        )
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidArgumentError(
            f"{place} is {type(leaf).__name__} of dtype {array.dtype}; arrays of booleans, integers and "
            "floats are saved, so leave it out"
        )
    copy: npt.NDArray[Any] = array.copy()
    return copy


def _like(saved: npt.NDArray[Any], leaf: Any) -> Any:
    """Saved values as what `leaf` is: an array of JAX or NumPy, or a number."""
    if isinstance(leaf, jax.Array):
        return jnp.asarray(saved)
    return np.array(saved) if isinstance(leaf, np.ndarray) else type(leaf)(saved.item())


def _describe_leaf(leaf: list[Any] | None) -> str:
    return "nothing" if leaf is None else f"{leaf[0] or 'an array'}, {leaf[1]} {tuple(leaf[2])}"
