"""How long and how carefully to train: the `training` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sparring_train.config.names import NamedClassOrName
from sparring_train.config.section import NonNegativeFloat, PositiveFloat, PositiveInt, Section

__all__ = ["TrainingConfig"]


class TrainingConfig(Section):
    """Training ends after `epochs` or after `steps`, whichever comes first."""

    epochs: PositiveInt = Field(1, description="Times to go through the training data.")
    steps: PositiveInt | None = Field(
        None, description="The most steps to take; null sets no limit."
    )
    loss: NamedClassOrName | None = Field(
        None,
        description="The loss of models for labels, in place of their own: a class of the framework, "
        "`torch.nn:HuberLoss` or `{name: torch.nn:HuberLoss, delta: 0.5}`. It gets the outputs of the "
        "model and the labels, `(b,)` each, and returns a loss for each example. Null: the model's own.",
    )
    metrics: Annotated[tuple[NamedClassOrName, ...], Field(strict=False, max_length=64)] = Field(
        (),
        description="Further metrics of models for labels: classes with the methods "
        "`update(predictions, labels)` and `metrics()`, which returns name → value. With an attribute "
        "`higher_is_better = False` lower values are better, for `watch`.",
    )
    micro_batches: PositiveInt = Field(
        1, description="Parts that a batch is split into; their gradients add up to one step."
    )
    pipeline: bool = Field(
        False,
        description="Look each batch up while the one before it is computed, and read again only "
        "what that one changed: the results are the same. It gains where a lookup waits for other "
        "ranks or for a slow storage, and costs where it does not. With `framework: torch`.",
    )
    evaluation_interval_steps: PositiveInt | None = Field(
        None,
        description="Evaluate after every so many steps: on the validation rows if the data keep some, "
        "otherwise on the test rows. Null: on the validation rows at the end of each epoch. At the end "
        "of training both are evaluated.",
    )
    watch: str | None = Field(
        None,
        min_length=1,
        description="The metric of the validation rows that says which step is best. Null: `auc`, `rmse` "
        "or `recall@10`, by the model.",
    )
    patience: PositiveInt | None = Field(
        None,
        description="Stop if so many evaluations in a row have not improved `watch`; null does not stop "
        "early. It needs validation rows.",
    )
    min_improvement: NonNegativeFloat = Field(
        0.0, description="The least change of `watch` that counts as an improvement."
    )
    keep_best: bool = Field(
        True,
        description="With validation rows: save a snapshot whenever `watch` has improved, and return to "
        "the best one at the end. It is what is tested, reported and saved as the newest snapshot. "
        "False: the last step is.",
    )
    log_interval_seconds: PositiveFloat = Field(
        5.0, description="Time between two lines of progress where there is no terminal."
    )
    non_finite_gradients: Literal["raise", "skip"] = Field(
        "raise",
        description="What a NaN or infinite gradient does: `raise` ends training with an error "
        "before any row changes; `skip` leaves the rows concerned as they are and counts them.",
    )
