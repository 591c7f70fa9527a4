"""Converts functions of `torch.nn.init` to initializers of tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.nn import init

from sparring import Constant, Normal, TruncatedNormal, Uniform, Zeros
from sparring.contracts import Initializer
from sparring.errors import InvalidArgumentError

__all__ = ["to_initializer"]


def to_initializer(function: Callable[..., Any], table: str) -> Initializer:
    """Returns the initializer with the distribution of a function of `torch.nn.init`.

    The values differ from the function's, because an initial embedding is determined by the
    seed, the table and the id.

    Args:
        function: a function of `torch.nn.init`, or a `functools.partial` of one with keywords.
        table: name of the table for messages.

    Raises:
        InvalidArgumentError: the function is not supported, or truncates at other than two standard
            deviations, but at less than six.
    """
    given: dict[str, Any] = {}
    inner: Any = function
    if isinstance(function, partial) and not function.args:
        inner, given = function.func, function.keywords
    make = _MAKERS.get(inner)
    if make is not None:
        defaults = {
            name: each.default
            for name, each in inspect.signature(inner).parameters.items()
            if name not in ("tensor", "generator")
        }
        is_known = given.keys() <= defaults.keys()
        found = make(*{**defaults, **given}.values()) if is_known else None
        if found is not None:
            return found
    raise InvalidArgumentError(
        f"init_fn of table {table!r}: found {function!r}, but rows are created one by one when ids "
        "arrive, so a function that fills a matrix is not supported; give initializer=Uniform(low, "
        "high), Normal(mean, stddev), TruncatedNormal(mean, stddev), Xavier(gain), "
        "Constant(value) or Zeros() of sparring, or functools.partial of torch.nn.init.zeros_, "
        "ones_, constant_, uniform_, normal_, or trunc_normal_ with a and b at two, or at more than six, "
        "standard deviations",
        table=table,
    )


def _constant(val: Any) -> Initializer | None:
    return None if val is inspect.Parameter.empty else Constant(val)


def _truncated(mean: float, std: float, a: float, b: float) -> Initializer | None:
    is_at_two = abs(a - (mean - 2 * std)) <= 1e-9 and abs(b - (mean + 2 * std)) <= 1e-9
    if is_at_two:
        return TruncatedNormal(mean, std)
    # a and b are absolute: with std=0.02, their defaults are at 100 standard deviations.
    is_unlimited = min(mean - a, b - mean) >= _UNLIMITED * std
    return Normal(mean, std) if is_unlimited else None


_UNLIMITED = 6
"""Number of standard deviations from which a truncation changes less than 1 of 10^8 values."""

_MAKERS: dict[Any, Callable[..., Initializer | None]] = {
    init.zeros_: Zeros,
    init.ones_: lambda: Constant(1.0),
    init.constant_: _constant,
    init.uniform_: Uniform,
    init.normal_: Normal,
    init.trunc_normal_: _truncated,
}
