"""Which optimizers update what: the `optimizer` section."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from sparring_train.config.names import KnownOrClassName, short_name
from sparring_train.config.section import PositiveFloat, Section

__all__ = ["DenseOptimizer", "OptimizerChoice", "OptimizerConfig", "SparseOptimizer"]

_NAME_DESCRIPTION = (
    "A class, `torch.optim:Adagrad` or one of your own, or the name of a class of the framework in "
    "small letters, `adagrad`."
)

_SHRINKING, _LR_OF_SHRINKING = ("adagrad", "rowwise_adagrad"), 0.05


class OptimizerChoice(Section):
    """A native optimizer of the framework, and its hyper-parameters.

    Any other key (`eps`, `betas`, `weight_decay`, …) goes to the optimizer as it stands; it
    answers for what it accepts.
    """

    model_config = ConfigDict(extra="allow")

    name: KnownOrClassName = Field(description=_NAME_DESCRIPTION)
    lr: PositiveFloat | None = Field(description="The learning rate.")

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """All keyword arguments of the optimizer, the learning rate included if there is one."""
        given = {} if self.lr is None else {"lr": self.lr}
        return {**given, **(self.model_extra or {})}


class SparseOptimizer(OptimizerChoice):
    """The optimizer of the rows of tables: an update method, or a native optimizer of the framework.

    Any other key (`eps`, `weight_decay`, …) goes to it as it stands.
    """

    name: KnownOrClassName = Field(
        "adagrad",
        description=(
            "An update method, `rowwise_adagrad`, which changes each row in one visit, or an optimizer "
            "of the framework, `torch.optim:Adagrad` or one of your own. A name in small letters that "
            "both have, `adagrad`, is the update method."
        ),
    )
    lr: PositiveFloat | None = Field(
        None,
        description=(
            "The learning rate. null: 0.05 for `adagrad` and `rowwise_adagrad`, whose steps shrink "
            "by themselves; for all others the default of the method or class, as 0.001 for `adam` "
            "and 0.0001 for `lion`."
        ),
    )
    tables: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Hyper-parameters of single tables, for update methods.",
    )
    update: Literal["auto", "shadow"] = Field(
        "auto",
        description=(
            "`shadow`: a class of the framework updates rows by its own code always, not by an update "
            "method that gives the same rows."
        ),
    )

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """As those of `OptimizerChoice`, with a learning rate that suits the method."""
        given = super().hyperparameters
        if self.lr is None and short_name(self.name) in _SHRINKING:
            return {"lr": _LR_OF_SHRINKING, **given}
        return given


class DenseOptimizer(OptimizerChoice):
    """A native optimizer of the framework for ordinary parameters.

    Any other key (`eps`, `betas`, `weight_decay`, …) goes to the optimizer as it stands.
    """

    name: KnownOrClassName = Field("adam", description=_NAME_DESCRIPTION)
    lr: PositiveFloat = Field(0.001, description="The learning rate.")


class OptimizerConfig(Section):
    """One optimizer for rows of tables, one for ordinary parameters."""

    sparse: SparseOptimizer = Field(SparseOptimizer(), description="For the rows of tables.")
    dense: DenseOptimizer = Field(DenseOptimizer(), description="For ordinary parameters.")
