"""`fused_params` of sharders: the optimizer of rows with FBGEMM's names."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from torch import nn

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.modules.table_module import TableModule
from sparring_torch.torchrec.in_backward import apply_optimizer_in_backward

__all__ = ["EmbOptimType", "apply_fused_params", "check_fused_params"]


class EmbOptimType(Enum):
    """Optimizers of rows."""

    SGD = "sgd"
    EXACT_SGD = "exact_sgd"
    ADAM = "adam"
    EXACT_ADAGRAD = "exact_adagrad"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"
    ROWWISE_ADAGRAD = "row_wise_adagrad"
    LAMB = "lamb"
    LARS_SGD = "lars_sgd"
    PARTIAL_ROWWISE_ADAM = "partial_row_wise_adam"
    PARTIAL_ROWWISE_LAMB = "partial_row_wise_lamb"
    NONE = "none"


_METHODS = {
    EmbOptimType.SGD: "sgd",
    EmbOptimType.EXACT_SGD: "sgd",
    EmbOptimType.ADAM: "adam",
    EmbOptimType.EXACT_ADAGRAD: "adagrad",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.LAMB: "lamb",
    EmbOptimType.PARTIAL_ROWWISE_ADAM: "partial_rowwise_adam",
}
_TAKEN = {"learning_rate": "lr", "eps": "eps", "beta1": "beta1", "beta2": "beta2"}


def check_fused_params(sharder: str, fused_params: Mapping[str, Any]) -> None:
    """Checks `fused_params` of a sharder.

    Raises:
        InvalidArgumentError: there is no optimizer.
        UnsupportedError: the optimizer or an entry has no counterpart.
    """
    advice = (
        "call apply_optimizer_in_backward before DistributedModelParallel, and leave it out here"
    )
    if "optimizer" not in fused_params:
        raise InvalidArgumentError(
            f"{sharder}: fused_params: found no 'optimizer' in {sorted(fused_params)}; {advice}"
        )
    if fused_params["optimizer"] not in _METHODS:
        raise UnsupportedError(
            f"{sharder}: fused_params: found optimizer {fused_params['optimizer']!r}, expected one of "
            f"{', '.join(str(each) for each in _METHODS)}"
        )
    for name, value in fused_params.items():
        # The formula of FBGEMM's decay differs between optimizers.
        if name not in {"optimizer", *_TAKEN} and not (name == "weight_decay" and not value):
            raise UnsupportedError(f"{sharder}: fused_params: found {name}={value!r}; {advice}")


def apply_fused_params(
    model: nn.Module, module_type: type[nn.Module], fused_params: Mapping[str, Any]
) -> None:
    """Sets the optimizer of the collections of one type in a model.

    Raises:
        InvalidArgumentError: a collection already has an optimizer in backward.
    """
    modules = [
        each
        for each in model.modules()
        if isinstance(each, TableModule) and isinstance(each, module_type)
    ]
    if modules:
        given = {ours: fused_params[name] for name, ours in _TAKEN.items() if name in fused_params}
        apply_optimizer_in_backward(
            _METHODS[fused_params["optimizer"]], modules, {"lr": 0.01, **given}
        )
