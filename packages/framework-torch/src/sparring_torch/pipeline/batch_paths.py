"""Finds where arguments of modules are in a batch, by observing one forward pass.

A model calls its collections with parts of a batch. If a part is an unchanged element of the batch, it
can be taken from the next batch before the model is called.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.table_module import TableModule

__all__ = ["Call", "RecordedCalls", "record_calls"]

_MAX_DEPTH = 5
_PARTS = (Tensor, KeyedJaggedTensor, JaggedTensor)
_CONSTANTS = (type(None), bool, int, float, str)

Take = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A module that each forward pass calls with parts of the batch."""

    module: TableModule
    arguments: tuple[Take, ...]
    named: Mapping[str, Take]

    def on(self, batch: Any) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments that the module will receive for another batch.

        Raises:
            LookupError, AttributeError: the batch has a different structure.
        """
        return (
            [take(batch) for take in self.arguments],
            {name: take(batch) for name, take in self.named.items()},
        )


@dataclasses.dataclass(slots=True)
class RecordedCalls:
    """Calls of modules in one forward pass."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    others: set[int] = dataclasses.field(default_factory=set)
    """`id` of agents that were also called with arguments that are not parts of the batch."""

    @property
    def predictable(self) -> list[Call]:
        """Calls with known arguments; includes all calls of an agent or none."""
        return [call for call in self.calls if id(call.module.agent) not in self.others]


@contextmanager
def record_calls(model: nn.Module, batch: Any) -> Iterator[RecordedCalls]:
    """Records calls to modules with tables in the block, in order."""
    seen = RecordedCalls()

    def record(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert isinstance(module, TableModule)
        if not module.is_training:
            return
        takes = [_take(batch, each) for each in arguments]
        named_takes = {name: _take(batch, each) for name, each in named.items()}
        call = _call(module, takes, named_takes)
        if call is None:
            seen.others.add(id(module.agent))
        else:
            seen.calls.append(call)

    hooks = [
        module.register_forward_pre_hook(record, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, TableModule)
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _call(
    module: TableModule, arguments: Sequence[Take | None], named: Mapping[str, Take | None]
) -> Call | None:
    known = [take for take in arguments if take is not None]
    known_named = {name: take for name, take in named.items() if take is not None}
    if len(known) < len(arguments) or len(known_named) < len(named):
        return None
    return Call(module, tuple(known), known_named)


def _take(batch: Any, wanted: Any) -> Take | None:
    """Returns how to take `wanted` from another batch, or None if it is not a part of `batch`."""
    if isinstance(wanted, _CONSTANTS):
        return lambda _: wanted
    return _search(batch, wanted, 0)


def _search(place: Any, wanted: Any, depth: int) -> Take | None:
    if place is wanted:
        return lambda found: found
    if depth == _MAX_DEPTH or isinstance(place, (*_PARTS, *_CONSTANTS)):
        return None
    for take, part in _parts(place):
        rest = _search(part, wanted, depth + 1)
        if rest is not None:
            return _after(take, rest)
    return None


def _parts(place: Any) -> Iterator[tuple[Take, Any]]:
    if isinstance(place, Mapping):
        for key, part in place.items():
            yield _item(key), part
    elif isinstance(place, (list, tuple)):
        for number, part in enumerate(place):
            yield _item(number), part
    else:
        names = list(getattr(place, "__dict__", ()))
        if dataclasses.is_dataclass(place):
            names += [each.name for each in dataclasses.fields(place) if each.name not in names]
        for name in names:
            yield _attribute(name), getattr(place, name)


def _item(key: Any) -> Take:
    return lambda found: found[key]


def _attribute(name: str) -> Take:
    return lambda found: getattr(found, name)


def _after(first: Take, then: Take) -> Take:
    return lambda found: then(first(found))
