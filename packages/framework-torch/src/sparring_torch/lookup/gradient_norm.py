"""The tensor that torch sees in place of the gradients of rows: their norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _foreach_utils

from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = ["GradientNorm", "NormSource"]


class NormSource(Protocol):
    """The gradients of which a `GradientNorm` is the norm."""

    num_seen: int
    """Changes with the gradients."""

    def is_current(self, norm: GradientNorm) -> bool:
        """Whether changes of `norm` still reach the gradients of the next step."""

    def norm_of_order(self, position: int, order: float) -> float:
        """Returns the norm of another order over all ranks."""

    def clamp(self, position: int, low: float, high: float) -> float:
        """Clamps each element of the gradients and returns their new 2-norm."""


class GradientNorm(Tensor):
    """The 2-norm ``(1,)`` of the gradients of some rows, over all ranks.

    Operations of torch that mean the same for the gradients and for their norm work on it: norms,
    multiplication by a number, checks for NaN and infinity. Norms of other orders and `clamp_` are
    computed with the gradients. All other operations raise, because torch would change or read one
    number instead of the elements.

    Args:
        value: the norm ``(1,)``; a `DTensor` if FSDP2 shards the other gradients.
        source: the gradients.
        position: position among the norms of `source`.
        is_copy: whether changes do not reach the gradients until ``parameter.grad`` is assigned.
    """

    represents_gradients = True
    """Whether the gradients have elements that the tensor does not have."""
    value: Tensor
    source: NormSource
    position: int
    is_copy: bool
    num_seen: int

    def __new__(
        cls, value: Tensor, source: NormSource, position: int, *, is_copy: bool = False
    ) -> GradientNorm:
        local = value.to_local() if hasattr(value, "to_local") else value
        made = Tensor._make_subclass(cls, local.detach())
        made.value, made.source, made.position, made.is_copy = value, source, position, is_copy
        made.num_seen = source.num_seen
        return made

    # The base class of tensors declares it as a class method with these parameters.
    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        name = _name_of(func)
        if name in _SAME:
            return args[0]
        if name in _READS:
            return func(*_replace(args, _value), **options)
        if name in _NORMS:
            return _norm(func, name, args, options)
        if name in _COPIES:
            return _copy(func, args, options)
        if _are_numbers(args[1:]) and _are_numbers(options.values()):
            if name in _PRODUCTS:
                return _copy(func, args, options)
            if name in _SCALES:
                _replace(args[:1], _check_current)
                result = func(*_replace(args, _value), **options)
                return args[0] if isinstance(args[0], GradientNorm) else result
        if name in _CLAMPS:
            bounds = _bounds(name, args[1:], options)
            if bounds is not None:
                return _clamp(func, args, options, bounds)
        raise UnsupportedError(
            f"{name}: found the gradient of rows, of which torch has only the norm, so that {name} would "
            "read or change one number instead of the elements. Supported are clip_grad_norm_, "
            "clip_grad_value_, clamp_ with bounds on both sides of 0, products with a number, zero_, "
            "norm, isnan and isinf. For all other changes, pass sparring_torch.Optimizer a "
            "subclass of your optimizer whose step changes the gradients (u, dim) of the rows, "
            "or use sparring_torch.dense_parameters(model) to leave out the rows",
            operation=name,
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"GradientNorm({self.value.item()})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.detach().clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: Any) -> GradientNorm:
        return GradientNorm(self.value.clone(), self.source, self.position, is_copy=True)


def _name_of(func: Callable[..., Any]) -> str:
    name: str = func.__name__
    # The getter of a property, such as `Tensor.shape`.
    return func.__self__.__name__ if name == "__get__" else name  # type: ignore[attr-defined]


def _replace(values: Any, how: Callable[[GradientNorm], Any]) -> Any:
    """Returns nested arguments with `how` applied to each norm."""
    if isinstance(values, GradientNorm):
        return how(values)
    if isinstance(values, (list, tuple)):
        return type(values)(_replace(each, how) for each in values)
    return values


def _value(norm: GradientNorm) -> Tensor:
    return norm.value


def _are_numbers(values: Any) -> bool:
    return all(
        _are_numbers(each)
        if isinstance(each, (list, tuple))
        else isinstance(each, Real)
        or (isinstance(each, Tensor) and not isinstance(each, GradientNorm) and each.numel() == 1)
        for each in values
    )


def _copy(func: Callable[..., Any], args: Any, options: Mapping[str, Any]) -> GradientNorm:
    like = next(each for each in args if isinstance(each, GradientNorm))
    made = func(*_replace(args, _value), **options)
    return GradientNorm(made, like.source, like.position, is_copy=True)


def _check_current(norm: GradientNorm) -> None:
    if not norm.is_copy and not norm.source.is_current(norm):
        raise InvalidArgumentError(
            "the gradient of rows was read before the last backward() or step(), so changing it would "
            "have no effect; read parameter.grad again"
        )


def _norm(func: Callable[..., Any], name: str, args: Any, options: Mapping[str, Any]) -> Any:
    key = "p" if name == "norm" else "ord"
    order = args[1] if len(args) > 1 else options.get(key)
    if len(args) > 2 or any(
        options[each] is not None and options[each] is not False
        for each in options.keys() - {key, "dtype"}
    ):
        raise UnsupportedError(
            f"{name}: gradients of rows support only the norm over all elements; call it without dim"
        )
    order = 2.0 if order in (None, "fro") else float(order)
    if not order > 0:
        raise UnsupportedError(
            f"{name}: found order {order} for gradients of rows, expected a positive order, or inf"
        )

    def of_order(norm: GradientNorm) -> Tensor:
        if order == 2:
            return norm.value
        _check_current(norm)
        if norm.is_copy:
            raise UnsupportedError(
                f"{name}: found a copy of the gradient of rows, of which only the 2-norm is known; read "
                f"parameter.grad again for the norm of order {order:g}"
            )
        return torch.full_like(norm.value, norm.source.norm_of_order(norm.position, order))

    return func(*_replace(args, of_order), **options)


def _bounds(
    name: str, rest: Sequence[Any], options: Mapping[str, Any]
) -> tuple[float, float] | None:
    """Returns the bounds of a clamp; None if it would change elements that are 0, or if the bounds are
    not numbers, because rows without a gradient must not change."""
    first, second = (*rest, None, None)[:2]
    low = high = None
    if "clamp_min" in name:
        low = options.get("min", first)
    elif "clamp_max" in name:
        high = options.get("max", first)
    else:
        low, high = options.get("min", first), options.get("max", second)
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if not _are_numbers([low, high]) or not float(low) <= 0 <= float(high):
        return None
    return float(low), float(high)


def _clamp(
    func: Callable[..., Any], args: Any, options: Mapping[str, Any], bounds: tuple[float, float]
) -> Any:
    def clamp(norm: GradientNorm) -> Tensor:
        _check_current(norm)
        if norm.is_copy:
            raise UnsupportedError(
                "clamp_: found a copy of the gradient of rows; clamp parameter.grad"
            )
        norm.value.fill_(norm.source.clamp(norm.position, *bounds))
        return torch.zeros(1)  # for the others of a list, which `func` clamps

    result = func(*_replace(args, clamp), **options)
    return args[0] if isinstance(args[0], GradientNorm) else result


_COPIES = {"clone", "to", "cpu", "cuda", "float", "double"}
_PRODUCTS = {
    *("__mul__", "__rmul__", "__truediv__", "__neg__", "neg", "negative", "mul", "multiply"),
    *("div", "divide", "true_divide"),
}
_SCALES = {
    *("mul_", "multiply_", "div_", "divide_", "true_divide_", "neg_", "negative_", "zero_"),
    *("__imul__", "__itruediv__", "__idiv__"),
    *("_foreach_mul_", "_foreach_div_", "_foreach_zero_", "_foreach_neg_"),
}
_CLAMPS = {
    *("clamp_", "clip_", "clamp_min_", "clamp_max_"),
    *("_foreach_clamp_min_", "_foreach_clamp_max_"),
}
_NORMS = {"norm", "linalg_vector_norm", "_foreach_norm"}
_SAME = {"detach", "data", "contiguous"}
_READS = {
    *("isnan", "isinf", "isfinite", "item", "tolist", "__float__", "__format__"),
    *("_amp_foreach_non_finite_check_and_unscale_", "_amp_non_finite_check_and_unscale_"),
    *("device", "dtype", "shape", "layout", "is_sparse", "is_cuda", "is_cpu", "is_leaf", "is_meta"),
    *(
        "is_mps",
        "is_mkldnn",
        "is_quantized",
        "is_nested",
        "is_sparse_csr",
        "requires_grad",
        "grad_fn",
    ),
    *(
        "ndim",
        "names",
        "itemsize",
        "nbytes",
        "size",
        "dim",
        "numel",
        "nelement",
        "__len__",
        "stride",
    ),
    *("is_floating_point", "is_complex", "is_contiguous", "element_size", "get_device", "__hash__"),
    *("is_same_size", "type", "_is_view", "is_inference"),
}

# torch's functions then also use their fast way for lists that contain norms, as for `DTensor`s.
_foreach_utils._foreach_supported_types.append(GradientNorm)  # type: ignore[arg-type]
