"""The update methods of core.

In all formulas, w is the embedding, g the summed and clipped gradient of its row, and t the step number.
Products, squares and roots are element-wise; mean(g²) and norms are computed over the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from sparring import _native
from sparring.contracts.storage.results import Rows
from sparring.contracts.storage.updates import UpdateMethod, UpdateRows
from sparring.contracts.tables.hyperparameters import (
    AdagradHyper,
    AdamHyper,
    FtrlHyper,
    GroupFtrlHyper,
    HyperParameters,
    LionHyper,
    MomentumHyper,
    RmspropHyper,
    RowwiseAdagradHyper,
    SgdHyper,
    SparseAdamHyper,
)

__all__ = [
    "BUILTIN_METHODS",
    "KERAS_HYPER",
    "NativeMethod",
    "clip_gradients",
    "keras_method",
    "uses_steps",
]

_CORRECT_BIAS = {"adam", "sparse_adam", "adamw", "partial_rowwise_adam", "lamb"}
"""Native methods whose updates depend on the number of steps with any hyper-parameters."""


class NativeMethod(UpdateMethod):
    """A fused method of ``native/kernels/update.h``.

    Examples:
        >>> from sparring.adapter import resolve_method
        >>> from sparring.contracts import NativeMethod
        >>> isinstance(resolve_method("adam"), NativeMethod), resolve_method("adam").state_width(16)
        (True, 32)
    """

    summary: str
    """One sentence for ``sparring plugins``."""

    def spec(
        self, dtype: str, dim: int, hyper: HyperParameters, step: int, rounding_seed: int = 0
    ) -> Any:
        """Creates the native `UpdateSpec` of one step.

        Args:
            dtype: dtype of the table.
            dim: number of elements of an embedding.
            hyper: hyper-parameters of the table in this step.
            step: see `UpdateRows.step`.
            rounding_seed: seed of the stochastic rounding of 16-bit tables, from `rounding_seed`.
        """
        given = self.numbers(hyper)
        return _native.UpdateSpec(self.name, dtype, dim, given, step, rounding_seed)

    def numbers(self, hyper: HyperParameters) -> dict[str, Any]:
        """Returns the hyper-parameters that the update uses, by name.

        Args:
            hyper: hyper-parameters of the table.
        """
        return hyper.model_dump(exclude={"initial_accumulator_value"})

    def state_width(self, dim: int) -> int:
        width: int = _native.UpdateSpec(self.name, "float32", dim, {}, 1).state_width
        return width

    def initial_state(
        self, dim: int, hyper: HyperParameters, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        state = np.zeros(self.state_width(dim), dtype)
        # The state of methods that accumulate squares begins with the accumulators.
        value = getattr(hyper, "initial_accumulator_value", 0.0)
        state[: min(dim, len(state))] = value
        return state

    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        dtype = str(rows.embeddings.dtype)
        spec = self.spec(dtype, rows.embeddings.shape[1], hyper, rows.step)
        _native.update_rows(spec, rows.keys, rows.rows, rows.gradients)


class Sgd(NativeMethod):
    """Stochastic gradient descent (Robbins and Monro, "A stochastic approximation method", 1951).

    g ← g + weight_decay·w;  w ← w - lr·g. No state.
    """

    name = "sgd"
    couples_columns = False
    hyperparameters = SgdHyper
    summary = "Stochastic gradient descent; no state."


class Momentum(NativeMethod):
    """Gradient descent with momentum (Polyak, "Some methods of speeding up the convergence of
    iteration methods", 1964; `nesterov`: Sutskever et al., "On the importance of initialization
    and momentum in deep learning", ICML 2013), in the form of `torch.optim.SGD`.

    g ← g + weight_decay·w;  b ← momentum·b + g;  w ← w - lr·b, or w - lr·(g + momentum·b) with
    `nesterov`. State: b (dim).
    """

    name = "momentum"
    couples_columns = False
    hyperparameters = MomentumHyper
    summary = "Gradient descent with (Nesterov) momentum."


class Adagrad(NativeMethod):
    """Adagrad (Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
    stochastic optimization", JMLR 2011), equal to `torch.optim.Adagrad`.

    g ← g + weight_decay·w;  s ← s + g²;  w ← w - lr/(1 + (t-1)·lr_decay)·g/(√s + eps).
    State: s (dim), from `initial_accumulator_value`.
    """

    name = "adagrad"
    couples_columns = False
    hyperparameters = AdagradHyper
    summary = "Adagrad with one accumulator per element."


class RowwiseAdagrad(NativeMethod):
    """Adagrad with one accumulator per row (Gupta et al., "Training recommender systems at scale:
    communication-efficient model and data parallelism", KDD 2021).

    g ← g + weight_decay·w;  s ← s + mean(g²);  w ← w - lr·g/(√s + eps).
    State: s (1), from `initial_accumulator_value`.
    """

    name = "rowwise_adagrad"
    hyperparameters = RowwiseAdagradHyper
    summary = "Adagrad with one accumulator per row, which needs very little state."


class Adam(NativeMethod):
    """Adam (Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1),
    equal to `torch.optim.Adam` but lazy: rows without a gradient do not change.

    g ← g + weight_decay·w;  m ← β1·m + (1-β1)·g;  v ← β2·v + (1-β2)·g²;
    w ← w - lr/(1-β1^t)·m/(√v/√(1-β2^t) + eps). State: m (dim), v (dim).
    """

    name = "adam"
    couples_columns = False
    hyperparameters = AdamHyper
    summary = "Lazy Adam."


class SparseAdam(NativeMethod):
    """Adam in the form of `torch.optim.SparseAdam` (Kingma and Ba, 2015, section 2, last paragraph).

    m ← m + (1-β1)·(g - m);  v ← v + (1-β2)·(g² - v);
    w ← w - lr·√(1-β2^t)/(1-β1^t)·m/(√v + eps). State: m (dim), v (dim).

    In `Adam`, eps is added after the bias correction of √v. The two differ if √v is about as small as
    eps.
    """

    name = "sparse_adam"
    couples_columns = False
    hyperparameters = SparseAdamHyper
    summary = "Adam like torch.optim.SparseAdam: eps is added before the bias correction."


class AdamW(NativeMethod):
    """Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay
    regularization", ICLR 2019), equal to `torch.optim.AdamW` but lazy.

    w ← w·(1 - lr·weight_decay), then `Adam` without its decay. State: m (dim), v (dim).
    """

    name = "adamw"
    couples_columns = False
    hyperparameters = AdamHyper
    summary = "Lazy Adam with decoupled weight decay."


class PartialRowwiseAdam(NativeMethod):
    """Adam with one second moment per row, which is the rule of Kingma and Ba (2015) with the row-wise
    squares of Gupta et al. (KDD 2021) and decoupled weight decay.

    w ← w·(1 - lr·weight_decay);  m ← β1·m + (1-β1)·g;  v ← β2·v + (1-β2)·mean(g²);
    w ← w - lr/(1-β1^t)·m/(√v/√(1-β2^t) + eps). State: m (dim), v (1).
    """

    name = "partial_rowwise_adam"
    hyperparameters = AdamHyper
    summary = "Lazy Adam with one second moment per row."


class Lamb(NativeMethod):
    """LAMB with each row as a layer (You et al., "Large batch optimization for deep learning:
    training BERT in 76 minutes", ICLR 2020).

    m and v like `Adam`;  r ← m/(1-β1^t)/(√v/√(1-β2^t) + eps) + weight_decay·w;
    w ← w - lr·(‖w‖/‖r‖)·r, with a ratio of 1 if either norm is 0. State: m (dim), v (dim).
    """

    name = "lamb"
    hyperparameters = AdamHyper
    summary = "LAMB with a trust ratio per row."


class Rmsprop(NativeMethod):
    """RMSprop (Tieleman and Hinton, "Lecture 6.5: rmsprop", Coursera 2012), equal to
    `torch.optim.RMSprop` without momentum.

    g ← g + weight_decay·w;  s ← alpha·s + (1-alpha)·g²;  w ← w - lr·g/(√s + eps).
    State: s (dim).
    """

    name = "rmsprop"
    couples_columns = False
    hyperparameters = RmspropHyper
    summary = "RMSprop."


class Lion(NativeMethod):
    """Lion (Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023).

    w ← w·(1 - lr·weight_decay) - lr·sign(β1·m + (1-β1)·g);  m ← β2·m + (1-β2)·g.
    State: m (dim).
    """

    name = "lion"
    couples_columns = False
    hyperparameters = LionHyper
    summary = "Lion: the sign of a momentum."


class Ftrl(NativeMethod):
    """FTRL-Proximal (McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013,
    algorithm 1).

    σ ← (√(n + g²) - √n)/lr;  z ← z + g - σ·w;  n ← n + g²;
    w ← 0 if |z| ≤ l1, else -(z - sign(z)·l1)/((beta + √n)/lr + l2).
    State: n (dim), from `initial_accumulator_value`; z (dim). The first update of a row replaces its
    initial embedding except for the part σ·w, so initialize such tables with zeros.
    """

    name = "ftrl"
    couples_columns = False
    hyperparameters = FtrlHyper
    summary = "FTRL-Proximal with l1 and l2."


class GroupFtrl(NativeMethod):
    """FTRL-Proximal with a group lasso over each row, according to Yue et al., "Adaptive optimizers
    with sparse group lasso for neural networks in CTR prediction", ECML PKDD 2021.

    n and z like `Ftrl`;  p ← 0 if |z| ≤ l1, else -(z - sign(z)·l1);
    w ← max(0, 1 - l21·√dim/‖p‖)·p/((beta + √n)/lr + l2), so rows with a small ‖p‖ become zero.
    State: n (dim), z (dim).
    """

    name = "group_ftrl"
    hyperparameters = GroupFtrlHyper
    summary = "FTRL-Proximal with a group lasso (l21), which sets complete rows to zero."


BUILTIN_METHODS: dict[str, type[NativeMethod]] = {
    method.name: method
    for method in (
        Sgd,
        Momentum,
        Adagrad,
        RowwiseAdagrad,
        Adam,
        SparseAdam,
        AdamW,
        PartialRowwiseAdam,
        Lamb,
        Rmsprop,
        Lion,
        Ftrl,
        GroupFtrl,
    )
}
"""Name → class of the update methods of core."""


class _KerasMethod(NativeMethod):
    """An optimizer of Keras 3, with its order of operations and therefore its rounding.

    The Keras optimizer provides `lr` and `weight_decay` in each step: for Adam, the learning rate with
    both bias corrections, and the decay multiplied by the learning rate.
    """

    def __init__(self, name: str, hyperparameters: type[HyperParameters]) -> None:
        self.name, self.hyperparameters, self.couples_columns = name, hyperparameters, False
        kind = name.removeprefix("keras_")
        self.summary = (
            f"{kind} with the rounding of Keras, for tables that Keras programs train on a service."
        )


class _KerasAdagradHyper(AdagradHyper):
    eps: float = Field(1e-7, ge=0)
    initial_accumulator_value: float = Field(0.1, ge=0)


class _KerasRmspropHyper(RmspropHyper):
    alpha: float = Field(0.9, ge=0, lt=1)
    eps: float = Field(1e-7, ge=0)


class _KerasAdamHyper(AdamHyper):
    eps: float = Field(1e-7, ge=0)


KERAS_HYPER: dict[str, type[HyperParameters]] = {
    "keras_sgd": SgdHyper,
    "keras_momentum": MomentumHyper,
    "keras_adagrad": _KerasAdagradHyper,
    "keras_rmsprop": _KerasRmspropHyper,
    "keras_adam": _KerasAdamHyper,
}
"""Name → hyper-parameters of the methods that `keras_method` creates, with the defaults of Keras."""


def keras_method(name: str) -> NativeMethod:
    """Creates the update method for a Keras optimizer.

    Args:
        name: ``keras_sgd``, ``keras_momentum``, ``keras_adagrad``, ``keras_rmsprop``, ``keras_adam``.
    """
    return _KerasMethod(name, KERAS_HYPER[name])


def clip_gradients(gradients: Rows, hyper: HyperParameters) -> None:
    """Clips gradients ``(n, dim)`` in place, first by value and then by the norm of each row."""
    if hyper.clip_value > 0:
        np.clip(gradients, -hyper.clip_value, hyper.clip_value, out=gradients)
    if hyper.clip_norm > 0:
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients *= np.where(
            norms > hyper.clip_norm, hyper.clip_norm / np.maximum(norms, hyper.clip_norm), 1
        )


def uses_steps(method: UpdateMethod, hyper: HyperParameters) -> bool:
    """Returns whether updates may depend on `UpdateRows.step`.

    Args:
        method: the update method.
        hyper: its current hyper-parameters.
    """
    if not isinstance(method, NativeMethod) or method.name in _CORRECT_BIAS:
        return True
    return bool(getattr(hyper, "lr_decay", 0))
