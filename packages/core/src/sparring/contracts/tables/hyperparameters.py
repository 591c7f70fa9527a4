"""Hyper-parameters of the built-in update methods, validated by pydantic."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from sparring.contracts.options import Options

__all__ = [
    "AdagradHyper",
    "AdamHyper",
    "FtrlHyper",
    "GroupFtrlHyper",
    "HyperParameters",
    "LionHyper",
    "MomentumHyper",
    "RmspropHyper",
    "RowwiseAdagradHyper",
    "SgdHyper",
    "SparseAdamHyper",
    "WeightDecay",
]

_NotNegative = Annotated[float, Field(ge=0)]
_Positive = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, lt=1)]


class HyperParameters(Options):
    """Hyper-parameters of every method.

    Attributes:
        lr: the learning rate.
        clip_value: elements of a row's gradient are clipped to ± this value; 0 disables it.
        clip_norm: a row's gradient is scaled down to at most this Euclidean norm, after
            `clip_value`; 0 disables it.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    lr: _NotNegative = 1e-3
    clip_value: _NotNegative = 0.0
    clip_norm: _NotNegative = 0.0


class WeightDecay(HyperParameters):
    """Hyper-parameters of methods with weight decay.

    Attributes:
        weight_decay: added to the gradient (coupled) or subtracted from the embedding (decoupled),
            depending on the method. Only rows with a gradient in a step decay.
    """

    weight_decay: _NotNegative = 0.0


class SgdHyper(WeightDecay):
    """Hyper-parameters of `sgd`."""


class MomentumHyper(WeightDecay):
    """Hyper-parameters of `momentum`."""

    momentum: _Share = 0.9
    nesterov: bool = False


class AdagradHyper(WeightDecay):
    """Hyper-parameters of `adagrad`."""

    lr: _NotNegative = 1e-2
    lr_decay: _NotNegative = 0.0
    eps: _NotNegative = 1e-10
    initial_accumulator_value: _NotNegative = 0.0


class RowwiseAdagradHyper(WeightDecay):
    """Hyper-parameters of `rowwise_adagrad`."""

    lr: _NotNegative = 1e-2
    eps: _NotNegative = 1e-8
    initial_accumulator_value: _NotNegative = 0.0


class AdamHyper(WeightDecay):
    """Hyper-parameters of `adam`, `adamw`, `partial_rowwise_adam` and `lamb`."""

    beta1: _Share = 0.9
    beta2: _Share = 0.999
    eps: _NotNegative = 1e-8


class SparseAdamHyper(HyperParameters):
    """Hyper-parameters of `sparse_adam`."""

    beta1: _Share = 0.9
    beta2: _Share = 0.999
    eps: _NotNegative = 1e-8


class RmspropHyper(WeightDecay):
    """Hyper-parameters of `rmsprop`."""

    lr: _NotNegative = 1e-2
    alpha: _Share = 0.99
    eps: _NotNegative = 1e-8


class LionHyper(WeightDecay):
    """Hyper-parameters of `lion`."""

    lr: _NotNegative = 1e-4
    beta1: _Share = 0.9
    beta2: _Share = 0.99


class FtrlHyper(HyperParameters):
    """Hyper-parameters of `ftrl`."""

    lr: _Positive = 5e-2
    beta: _NotNegative = 1.0
    l1: _NotNegative = 0.0
    l2: _NotNegative = 0.0
    initial_accumulator_value: _NotNegative = 0.0


class GroupFtrlHyper(FtrlHyper):
    """Hyper-parameters of `group_ftrl`."""

    l21: _NotNegative = 0.0
