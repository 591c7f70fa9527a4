"""Converts state of torch objects to numbers and arrays for snapshots, without pickle.

A `state_dict` is a tree of mappings, lists, numbers and tensors. It is converted to JSON, with tensors
stored separately:
    {"step": 3, "betas": (0.9, 0.999), 7: tensor}
    {"map": [["step", 3], ["betas", {"tuple": [0.9, 0.999]}], [7, {"tensor": "dense.0", "dtype": …}]]}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import State
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.state.rows_in_state import without_rows
from sparring_torch.state.sharded_tensors import shard_state, unshard

__all__ = ["gather_random_state", "gather_state", "restore_random_state", "restore_state"]

_PLAIN = (bool, int, float, str, type(None))


class _Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


def gather_state(**parts: _Stateful) -> State:
    """Copies the state of modules, optimizers and schedulers, for `StepContainer.save`.

    For a `sparring_torch.Optimizer`, this is the state per table; rows and their state are saved with
    the tables. If FSDP2 shards parameters, all ranks must call it; the copy contains full parameters.

    Args:
        **parts: named objects with `state_dict` and `load_state_dict`.

    Raises:
        UnsupportedError: a state contains something other than numbers, strings and tensors.

    Examples:
        >>> import torch
        >>> from sparring_torch import gather_state
        >>> sorted(gather_state(layer=torch.nn.Linear(2, 1)).arrays)
        ['layer.bias.1', 'layer.weight.0']
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    with without_rows():
        values = {name: _pack(part.state_dict(), name, arrays) for name, part in parts.items()}
    return State(values, arrays)


def restore_state(state: State, **parts: _Stateful) -> None:
    """Loads the state that `gather_state` copied.

    Args:
        state: state from `StepContainer.load`.
        **parts: objects under the same names; other parts of the state are ignored.

    Raises:
        InvalidArgumentError: the state has no such name, or a part rejects its state.

    Examples:
        >>> import torch
        >>> from sparring_torch import gather_state, restore_state
        >>> layer = torch.nn.Linear(2, 1)
        >>> state = gather_state(layer=layer)
        >>> torch.nn.init.zeros_(layer.weight).any().item()
        False
        >>> restore_state(state, layer=layer)
        >>> layer.weight.any().item()
        True
    """
    restored = {}
    for name in parts:
        if not isinstance(state.values, Mapping) or name not in state.values:
            raise InvalidArgumentError(
                f"restore_state: found no state of {name!r}; the state contains "
                f"{', '.join(state.values or ()) or 'nothing'}",
                name=name,
            )
        restored[name] = _unpack(state.values[name], state.arrays)
    with without_rows():
        for name, part in parts.items():
            if isinstance(part, torch.optim.Optimizer) and {"state", "param_groups"} <= set(
                restored[name]
            ):
                restored[name] = shard_state(restored[name], part)
            part.load_state_dict(restored[name])


def gather_random_state() -> State:
    """Copies torch's random state of this rank: of the CPU, and of the current GPU if it is in
    use.

    Examples:
        >>> import torch
        >>> from sparring_torch import gather_random_state, restore_random_state
        >>> state = gather_random_state()
        >>> numbers = torch.rand(3)
        >>> restore_random_state(state)
        >>> torch.equal(torch.rand(3), numbers)
        True
    """
    states = {"torch": torch.get_rng_state().numpy().copy()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state().numpy().copy()
    return State(None, states, is_of_rank=True)


def restore_random_state(state: State) -> None:
    """Sets torch's random state to that copied by `gather_random_state`.

    Args:
        state: state from `StepContainer.load`, or from `gather_random_state`.

    Examples:
        >>> from sparring_torch import gather_random_state, restore_random_state
        >>> restore_random_state(gather_random_state())
    """
    torch.set_rng_state(torch.from_numpy(np.array(state.arrays["torch"], np.uint8)))
    if "cuda" in state.arrays and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(np.array(state.arrays["cuda"], np.uint8)))


def _pack(value: Any, place: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, Tensor):
        return _pack_tensor(value, place, arrays)
    if isinstance(value, Mapping):
        items = []
        for key, each in value.items():
            if not isinstance(key, (str, int)):
                raise _make_error(place, f"key {key!r}")
            items.append([key, _pack(each, f"{place}.{key}", arrays)])
        return {"map": items}
    if isinstance(value, (list, tuple)):
        items = [_pack(each, f"{place}.{i}", arrays) for i, each in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, _PLAIN):
        return value
    raise _make_error(place, type(value).__name__)


def _pack_tensor(value: Tensor, place: str, arrays: dict[str, npt.NDArray[Any]]) -> Any:
    if value.is_sparse or value.is_complex() or value.is_quantized:
        raise _make_error(place, f"a tensor of {value.dtype}, {value.layout}")
    name = f"{place[:150]}.{len(arrays)}"
    plain = unshard(value.detach()).cpu().contiguous()
    dtype = str(plain.dtype).removeprefix("torch.")
    # NumPy has no bfloat16.
    shown = plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
    arrays[name] = shown.numpy().copy()
    return {"tensor": name, "dtype": dtype}


def _unpack(value: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_unpack(each, arrays) for each in value]
    if not isinstance(value, dict):
        return value
    if "map" in value:
        return {key: _unpack(each, arrays) for key, each in value["map"]}
    if "tuple" in value:
        return tuple(_unpack(each, arrays) for each in value["tuple"])
    name, dtype = str(value.get("tensor")), getattr(torch, str(value.get("dtype")), None)
    if name not in arrays or not isinstance(dtype, torch.dtype):
        raise InvalidArgumentError(
            f"restore_state: found no tensor {name!r} of {value.get('dtype')} in the state; use a "
            "state from gather_state",
            name=name,
        )
    tensor = torch.from_numpy(np.array(arrays[name]))
    return tensor.view(dtype) if dtype == torch.bfloat16 else tensor


def _make_error(place: str, found: str) -> UnsupportedError:
    return UnsupportedError(
        f"state {place}: found {found}, but only numbers, text, lists, mappings and dense tensors can "
        "be saved; save the rest separately, and give this part a state_dict without it",
        place=place,
    )
