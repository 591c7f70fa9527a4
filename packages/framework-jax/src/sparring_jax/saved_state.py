"""Pytrees in a snapshot, next to the rows of tables: named arrays without pickle.

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
"""Name of this state in a snapshot."""

Part: TypeAlias = Any
"""A pytree, or an object with a pytree: `HasState`."""


@runtime_checkable
class HasState(Protocol):
    """An object with a pytree of state, such as `Optimizer`."""

    def state_tree(self) -> Any:
        """Returns the pytree."""

    def set_state_tree(self, tree: Any) -> None:
        """Restores the pytree."""


def gather_state(parts: Mapping[str, Part]) -> State:
    """Copies pytrees for `StepContainer.save`.

    Raises:
        InvalidArgumentError: a leaf is not an array of numbers.
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
    """Checks, before a snapshot is loaded, that it contains all parts in the same shapes.

    Raises:
        InvalidArgumentError: a part differs; the message describes the first difference.
        SnapshotError: the snapshot does not exist or is damaged.
    """
    snapshot = open_snapshot(url)
    if STATE_NAME not in snapshot.state_names():
        raise InvalidArgumentError(
            f"load: snapshot {url} was saved by another framework and does not contain the parts "
            f"{', '.join(parts)} of JAX; its state is {', '.join(snapshot.state_names()) or 'empty'}. "
            "Call load(url) to load only its rows"
        )
    saved = snapshot.state(STATE_NAME)
    _match_state(State(saved.values, saved.arrays), parts)


def restore_state(state: State | None, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Returns pytrees like those in `parts`, with the saved values.

    Parts with a state, such as `Optimizer`, are restored in place and not returned.

    Raises:
        InvalidArgumentError: see `check_state`.
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
                f"load: this snapshot has no part {name!r}; it has {', '.join(state.values) or 'none'}",
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
                f"load: part {name!r} of this snapshot contains {_describe_leaf(theirs)}, expected "
                f"{_describe_leaf(ours)}; create the part with the structure and shapes that were saved",
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
            f"save: {place} is a key of jax.random; save jax.random.key_data(key), and wrap it after "
            "loading"
        )
    array = np.asarray(leaf)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise InvalidArgumentError(
            f"save: {place} is {type(leaf).__name__} of dtype {array.dtype}, expected booleans, integers "
            "or floats; leave it out"
        )
    copy: npt.NDArray[Any] = array.copy()
    return copy


def _like(saved: npt.NDArray[Any], leaf: Any) -> Any:
    """Converts saved values to the type of `leaf`: an array of JAX or NumPy, or a number."""
    if isinstance(leaf, jax.Array):
        return jnp.asarray(saved)
    return np.array(saved) if isinstance(leaf, np.ndarray) else type(leaf)(saved.item())


def _describe_leaf(leaf: list[Any] | None) -> str:
    return "nothing" if leaf is None else f"{leaf[0] or 'an array'}, {leaf[1]} {tuple(leaf[2])}"
