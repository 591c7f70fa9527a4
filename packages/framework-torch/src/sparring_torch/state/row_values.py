"""Rows of a module as a value of torch, for functions that average or copy the parameters of models.

    anchor.data, anchor.detach() ──► `RowsValue` ──► decay · a + (1 - decay) · p ──► copy_, lerp_
                                                      weighted sum of rows            rows are written

The parameter of a module with tables has no elements. Its value therefore is the rows of all tables of
the module, and supports the operations of averages: weighted sums, `clone`, and `copy_` and `lerp_` in
place. Sums whose weights are ``1 - w`` and ``w`` average the rows (`row_averages`), and a copy of another
model's rows writes them. Other operations in place raise.

The file is long because operations, sums and averages of rows are one algebra.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from sparring import StepContainer
from sparring.adapter import join_container
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.state.copied_rows import copy_rows, read_rows
from sparring_torch.state.copy_container import CopyContainer, drop_state

__all__ = ["RowsValue", "is_change", "is_new_average", "is_reference", "prepare_average", "rows_of"]

_TOLERANCE = 1e-6

_REMEDY = (
    "leave the parameter out with sparring_torch.dense_parameters(model), or set rows with initializer=… "
    "or StepContainer.assign; for averages, use torch.optim.swa_utils.AveragedModel(model, "
    "multi_avg_fn=get_ema_multi_avg_fn(1 - tau)), whose rows are averaged, or "
    "target.load_state_dict(model.state_dict()), which copies them"
)


class _Live:
    """The current rows of a module."""

    def __init__(self, module: Any) -> None:
        agent = module.agent
        self.is_shared = hasattr(agent, "original")
        self.agent = getattr(agent, "original", agent)

    @property
    def identity(self) -> object:
        return self.agent

    @property
    def own_tables(self) -> list[str]:
        """The tables that this module is the first to copy; others share them with it."""
        holders = _holders.setdefault(self.agent.container, {})
        names = list(dict.fromkeys(self.agent.table_names))
        for name in names:
            holder = holders.get(name)
            if holder is None or holder() is None:
                holders[name] = weakref.ref(self.agent)
        return [name for name in names if holders[name]() is self.agent]

    def rows(self, table: str) -> Iterable[Any]:
        return read_rows(self.agent.container, table)


class _Snapshot:
    """A copy of rows of a module."""

    def __init__(self, live: _Live) -> None:
        self.agent = live.agent
        self._rows = {name: list(live.rows(name)) for name in live.own_tables}

    @property
    def identity(self) -> object:
        return self

    def rows(self, table: str) -> Iterable[Any]:
        if table not in self._rows:
            raise UnsupportedError(
                f"copy of rows: found a clone without table {table!r}, which another module has, too; "
                "clone and copy the parameters in the order of model.parameters()",
                table=table,
            )
        return self._rows[table]


class _Unknown:
    """Stands for rows while an averaging function is checked."""

    def __init__(self) -> None:
        self.value: Mapping[Any, float] | None = None

    @property
    def identity(self) -> object:
        return self


_holders = weakref.WeakKeyDictionary[StepContainer, dict[str, "weakref.ref[Any]"]]()


class RowsValue(Tensor):
    """Weighted sum of rows, as a tensor without elements."""

    terms: Sequence[tuple[float, Any]] = ()
    """Weights and sources."""
    target: Any = None
    """Source whose rows change if this tensor is changed in place."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        args, named = [_as_value(each) for each in args], dict(kwargs or {})
        name = _SAME_AS.get(func.__name__, func.__name__)
        if func is Tensor.data.__get__:  # type: ignore[attr-defined]
            name = "detach"
        if name.startswith("_foreach_"):
            return _apply_foreach(func, name, args, named)
        known = _OPERATIONS.get(name)
        if known is not None and "out" not in named:
            result = known(*args, **named)
            if result is not NotImplemented:
                return result
        is_mixed = named.get("out") is not None or any(
            getattr(each, "represents_gradients", False) for each in args
        )
        rejected = next(
            (
                each
                for each in (*args, named.get("out"))
                if _rejects(each, name) or (is_mixed and isinstance(each, RowsValue))
            ),
            None,
        )
        if rejected is not None:
            _reject(name, rejected)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **named)


def rows_of(anchor: Tensor, module: nn.Module | None) -> Tensor:
    """Returns the rows of a module as a value.

    Args:
        anchor: the parameter that represents them.
        module: the module; None returns a tensor without rows.
    """
    plain = Tensor.detach(anchor)
    if module is None or not hasattr(module, "agent") or type(plain) is not Tensor:
        return plain
    source = _Live(module)
    return _value(plain, [(1.0, source)], source)


def _value(like: Tensor, terms: Sequence[tuple[float, Any]], target: Any = None) -> RowsValue:
    with torch._C.DisableTorchFunctionSubclass():
        made = Tensor.detach(like).as_subclass(RowsValue)
    made.terms, made.target = terms, target
    return made


def _rejects(value: Any, name: str) -> bool:
    """Returns whether a value of rows rejects an operation that it does not support.

    The rows of a module read as a tensor without elements, for example in sums over all parameters. Sums
    of rows do not, because a result that depends on them would change an average.
    """
    if not isinstance(value, RowsValue):
        return False
    is_plain = len(value.terms) == 1 and not isinstance(value.terms[0][1], _Unknown)
    return is_change(name) or not (is_plain or name in _DESCRIBING)


def _as_value(given: Any) -> Any:
    """Returns the rows that a parameter represents."""
    if isinstance(given, (list, tuple)):
        return [_as_value(each) for each in given]
    return given.detach() if getattr(given, "represents_rows", False) else given


def _number(value: Any) -> float | None:
    if isinstance(value, Tensor) and not isinstance(value, RowsValue) and value.numel() == 1:
        return float(value)
    return float(value) if isinstance(value, (int, float)) else None


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value if isinstance(value, RowsValue) else NotImplemented


def _scaled(value: Any, factor: Any) -> Any:
    if isinstance(factor, RowsValue):
        value, factor = factor, value
    number = _number(factor)
    if not isinstance(value, RowsValue) or number is None:
        return NotImplemented
    return _value(value, [(weight * number, source) for weight, source in value.terms])


def _divided(value: Any, divisor: Any) -> Any:
    number = _number(divisor)
    return NotImplemented if not number else _scaled(value, 1 / number)


def _sum(first: Any, second: Any, *, alpha: Any = 1) -> Any:
    number = _number(alpha)
    if not (isinstance(first, RowsValue) and isinstance(second, RowsValue)) or number is None:
        return NotImplemented
    return _value(
        first, [*first.terms, *((each * number, source) for each, source in second.terms)]
    )


def _difference(first: Any, second: Any, *, alpha: Any = 1) -> Any:
    number = _number(alpha)
    return NotImplemented if number is None else _sum(first, second, alpha=-number)


def _lerp(first: Any, second: Any, weight: Any) -> Any:
    number = _number(weight)
    if number is None:
        return NotImplemented
    scaled = _scaled(first, 1 - number)
    return NotImplemented if scaled is NotImplemented else _sum(scaled, second, alpha=number)


def _clone(value: Any, **_: Any) -> Any:
    terms = [
        (weight, _Snapshot(each) if isinstance(each, _Live) and not each.is_shared else each)
        for weight, each in value.terms
    ]
    return _value(value, terms)


def _copy_in_place(target: Any, value: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001
    if not isinstance(target, RowsValue):
        return NotImplemented  # an ordinary tensor
    if not isinstance(value, RowsValue):
        _reject("copy_", target)
    _set_rows(target, value.terms)
    return target


def _lerp_in_place(target: Any, end: Any, weight: Any) -> Any:
    value = _lerp(target, end, weight)
    if value is NotImplemented:
        _reject("lerp_", target)
    return _copy_in_place(target, value)


def _apply_foreach(
    func: Callable[..., Any], name: str, args: Sequence[Any], named: Mapping[str, Any]
) -> Any:
    """Applies an operation to lists, some of whose tensors are rows."""
    known: Mapping[str, Callable[..., Any]] = {
        "_foreach_lerp_": _lerp_in_place,
        "_foreach_copy_": _copy_in_place,
    }
    own = known.get(name)
    are_rows = [isinstance(each, RowsValue) for each in args[0]]
    if own is None and any(are_rows):
        _reject(name, args[0][are_rows.index(True)])

    def select(value: Any, *, of_rows: bool) -> Any:
        if not isinstance(value, (list, tuple)):
            return value
        return [each for each, found in zip(value, are_rows, strict=True) if found is of_rows]

    others = [select(each, of_rows=False) for each in args]
    with torch._C.DisableTorchFunctionSubclass():
        result = func(*others, **named) if others[0] else None
    for place in (place for place, found in enumerate(are_rows) if found):
        assert own is not None  # checked above
        given = [each[place] if isinstance(each, (list, tuple)) else each for each in args]
        own(*given, **named)
    return result


_OPERATIONS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("detach", "to", "cpu", "cuda", "contiguous"), _same),
    "clone": _clone,
    "mul": _scaled,
    "div": _divided,
    "add": _sum,
    "sub": _difference,
    "lerp": _lerp,
    "copy_": _copy_in_place,
    "lerp_": _lerp_in_place,
}
_SAME_AS = {
    "__mul__": "mul",
    "__rmul__": "mul",
    "multiply": "mul",
    "__truediv__": "div",
    "true_divide": "div",
    "divide": "div",
    "__add__": "add",
    "__radd__": "add",
    "__sub__": "sub",
    "subtract": "sub",
    "__imul__": "mul_",
    "__iadd__": "add_",
    "__isub__": "sub_",
    "__itruediv__": "div_",
}
_DESCRIBING = {
    *(
        "__get__",
        "__hash__",
        "__len__",
        "__repr__",
        "__format__",
        "dim",
        "size",
        "numel",
        "nelement",
    ),
    *("stride", "type", "get_device", "element_size", "is_contiguous", "is_floating_point"),
    *("is_complex", "requires_grad_", "storage_offset", "data_ptr"),
}
"""Operations that do not read elements."""


def is_change(name: str) -> bool:
    """Returns whether an operation of torch changes its first argument, by its name."""
    if name.startswith("__"):
        return name in ("__setitem__", *(f"__i{each}__" for each in _OPERATORS))
    return name.endswith("_") and not name.startswith("_") and name != "requires_grad_"


_OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift"),
    "rshift",
)


def is_reference(value: RowsValue) -> bool:
    """Returns whether a value is the current rows of a module, and not a sum or a copy."""
    return len(value.terms) == 1 and value.terms[0][0] == 1 and value.target is not None


def _reject(operation: str, value: RowsValue) -> NoReturn:
    agents = [each.agent for _, each in value.terms if not isinstance(each, _Unknown)]
    names = dict.fromkeys(name for each in agents for name in each.table_names)
    raise UnsupportedError(
        f"{operation} on the parameter of tables {', '.join(names)}, whose rows support only weighted "
        f"sums of two models, copy_ and lerp_; no row was changed; {_REMEDY}",
        operation=operation,
    )


def _set_rows(value: RowsValue, terms: Sequence[tuple[float, Any]]) -> None:
    """Makes the rows of a value's target equal to a weighted sum."""
    target = value.target
    weights: dict[Any, float] = {}
    sources = {each.identity: each for _, each in terms}
    for weight, each in terms:
        weights[each.identity] = weights.get(each.identity, 0.0) + weight
    if isinstance(target, _Unknown):
        target.value = value.terms = weights  # type: ignore[assignment]
        value.terms = terms
        return
    own = 0.0 if target is None else weights.pop(target.identity, 0.0)
    weights = {each: weight for each, weight in weights.items() if weight != 0.0}
    if target is None or len(weights) > 1 or abs(own + sum(weights.values()) - 1) > _TOLERANCE:
        _reject("a weighted sum with weights that do not add up to 1", value)
    if not weights:
        return
    ((identity, weight),) = weights.items()
    source = sources[identity]
    if target.is_shared:
        if source.agent is not target.agent:
            _reject("copy_ of the rows of another model", value)
        return
    is_copy = abs(weight - 1) < _TOLERANCE
    if not is_copy and (not isinstance(source, _Live) or not 0 < weight < 1):
        _reject(f"an average with weight {weight}", value)
    _check_tables(target.agent, source.agent)
    container = _joined_container(target.agent, source.agent.container)
    if isinstance(container, CopyContainer):
        container.check_memory(source.agent.container)
        if not target.agent.has_optimizer:
            container.state.set_steps(source.agent.container.counters.steps)  # names its snapshots
    for table in target.own_tables:
        if is_copy:
            copy_rows(container, table, source.rows(table))
            continue
        if not isinstance(container, CopyContainer):
            raise UnsupportedError(
                f"average of the rows of table {table!r}: found a model that was created separately, "
                f"expected a copy.deepcopy of the other model; no row was changed; {_REMEDY}",
                table=table,
            )
        container.average(table, source.agent.container, weight)


def _check_tables(target: Any, source: Any) -> None:
    found, expected = (
        {each.table.name: each.table.with_state(0) for each in agent.declarations}
        for agent in (source, target)
    )
    if found != expected:
        raise InvalidArgumentError(
            f"copy of rows: found tables {', '.join(found)}, expected tables {', '.join(expected)} with "
            "equal configurations; create the second model by copy.deepcopy(model)",
            tables=list(expected),
        )


def _joined_container(agent: Any, source: StepContainer) -> StepContainer:
    """Returns the container of a copy, whose rows are on the same ranks as those of the other model.

    A copy that was created before the other model joined its ranks joins them now.
    """
    container: StepContainer = agent.container
    names = agent.table_names
    if all(_are_on_same_ranks(container, source, name) for name in names):
        return container
    if isinstance(container, CopyContainer) and not agent.has_rows:
        container.successor = container.successor or CopyContainer(source)
        agent.join(container.successor)
        return container.successor
    raise UnsupportedError(
        f"copy of the rows of tables {', '.join(names)}: the other model has them on other "
        "ranks; no row was changed. Create the copy or the AveragedModel after the other model has its "
        "ranks, and load its state",
        tables=names,
    )


def _are_on_same_ranks(first: StepContainer, second: StepContainer, table: str) -> bool:
    mine, other = first.layout(table), second.layout(table)
    return mine.world_size == other.world_size and np.array_equal(mine.owners, other.owners)


# -- AveragedModel


def is_new_average(parent: nn.Module, child: nn.Module | None) -> bool:
    """Returns whether `child` is the copy of a model that the constructor of an `AveragedModel` sets.

    Args:
        parent: the module to which `child` is added.
        child: the added module.
    """
    is_average = isinstance(parent, AveragedModel) and not hasattr(parent, "use_buffers")
    return is_average and child is not None


def prepare_average(parent: nn.Module, child: nn.Module) -> None:
    """Prepares the tables of a new average, and checks the functions that the constructor sets next.

    Args:
        parent: the `AveragedModel`.
        child: its module.
    """
    assert isinstance(parent, AveragedModel)
    modules: list[Any] = [each for each in child.modules() if "anchor" in each._parameters]
    agents = [each.agent for each in modules if not hasattr(each.agent, "original")]
    if not agents:
        return
    if not any(each.has_container for each in agents):
        container = CopyContainer()
        for each in agents:
            each.join(container)
    else:
        join_container(agents)
    for each in agents:
        for name in each.table_names:
            drop_state(each.container, name)
    _check_functions(parent)


def _check_functions(averaged: AveragedModel) -> None:
    """Checks the averaging functions as soon as the constructor sets them."""
    kind = type(averaged)
    if kind.__setattr__.__name__ == "set_attribute":
        return  # for a second assignment, on another device

    def set_attribute(self: Any, name: str, value: Any) -> None:
        kind.__setattr__(self, name, value)
        if name == "multi_avg_fn":  # the last one
            self.__class__ = kind
        if name in ("avg_fn", "multi_avg_fn") and value is not None:
            _check_function(name, value)

    averaged.__class__ = type(kind.__name__, (kind,), {"__setattr__": set_attribute})


def _check_function(name: str, function: Callable[..., Any]) -> None:
    """Rejects a function that does not average by a weighted sum, unlike torch's functions."""
    if getattr(function, "__module__", "") == AveragedModel.__module__:
        return
    mine, theirs = _Unknown(), _Unknown()
    average = _value(torch.empty(0, 1), [(1.0, mine)], mine)
    current = _value(torch.empty(0, 1), [(1.0, theirs)])
    reason: Exception | None = None
    weights: Mapping[Any, float] | None = None
    try:
        if name == "avg_fn":
            result = function(average, current, torch.tensor(1))
            _set_rows(average, result.terms)
        else:
            function([average], [current], torch.tensor(1))
        weights = mine.value
    except Exception as error:
        reason = error
    if weights is not None:
        own, other = weights.get(mine, 0.0), weights.get(theirs, 0.0)
        if abs(own + other - 1) < _TOLERANCE and 0 <= other <= 1:
            return
    raise UnsupportedError(
        f"AveragedModel: {name} {getattr(function, '__qualname__', function)!r} is no weighted sum "
        "of its two first arguments whose weights add up to 1, so that rows cannot be averaged; use "
        "get_ema_multi_avg_fn, get_swa_multi_avg_fn, or create the AveragedModel in `with "
        "sparring_torch.shared_rows():`, which reads the current rows"
    ) from reason
