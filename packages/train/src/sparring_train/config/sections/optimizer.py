"""The `optimizer` section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from sparring_train.config.names import KnownOrClassName, short_name
from sparring_train.config.section import PositiveFloat, Section

__all__ = ["DenseOptimizer", "OptimizerChoice", "OptimizerConfig", "SparseOptimizer"]

_NAME_DESCRIPTION = (
    "A class such as `torch.optim:Adagrad` or your own, or the name of one of the framework's "
    "optimizers in lower case: `adagrad`."
)

_SHRINKING, _LR_OF_SHRINKING = ("adagrad", "rowwise_adagrad"), 0.05


class OptimizerChoice(Section):
    """An optimizer of the framework and its hyperparameters.

    Other keys (`eps`, `betas`, `weight_decay`, …) are passed to the optimizer unchanged; it raises if
    it does not accept them.
    """

    model_config = ConfigDict(extra="allow")

    name: KnownOrClassName = Field(description=_NAME_DESCRIPTION)
    lr: PositiveFloat | None = Field(description="Learning rate.")

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Keyword arguments of the optimizer, including the learning rate if it is set."""
        given = {} if self.lr is None else {"lr": self.lr}
        return {**given, **(self.model_extra or {})}


class SparseOptimizer(OptimizerChoice):
    """The optimizer of table rows: an update method, or an optimizer of the framework.

    Other keys (`eps`, `weight_decay`, …) are passed to it unchanged.
    """

    name: KnownOrClassName = Field(
        "adagrad",
        description=(
            "An update method such as `rowwise_adagrad`, which updates each row in one access, or an "
            "optimizer of the framework: `torch.optim:Adagrad` or your own class. A name in lower case "
            "that both have, such as `adagrad`, selects the update method."
        ),
    )
    lr: PositiveFloat | None = Field(
        None,
        description=(
            "Learning rate. Null: 0.05 for `adagrad` and `rowwise_adagrad`, whose steps become smaller "
            "over time; otherwise the default of the method or class, for example 0.001 for `adam` "
            "and 0.0001 for `lion`."
        ),
    )
    tables: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Hyperparameters per table; only for update methods.",
    )
    update: Literal["auto", "shadow"] = Field(
        "auto",
        description=(
            "`auto`: if an update method computes the same rows as the framework's optimizer, the "
            "method is used instead. `shadow`: the framework's optimizer always updates the rows "
            "itself."
        ),
    )

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Keyword arguments of the optimizer, including the method's default learning rate."""
        given = super().hyperparameters
        if self.lr is None and short_name(self.name) in _SHRINKING:
            return {"lr": _LR_OF_SHRINKING, **given}
        return given


class DenseOptimizer(OptimizerChoice):
    """The optimizer of the framework for ordinary parameters.

    Other keys (`eps`, `betas`, `weight_decay`, …) are passed to the optimizer unchanged.
    """

    name: KnownOrClassName = Field("adam", description=_NAME_DESCRIPTION)
    lr: PositiveFloat = Field(0.001, description="Learning rate.")


class OptimizerConfig(Section):
    """One optimizer for table rows and one for ordinary parameters."""

    sparse: SparseOptimizer = Field(SparseOptimizer(), description="Optimizer of table rows.")
    dense: DenseOptimizer = Field(DenseOptimizer(), description="Optimizer of other parameters.")
