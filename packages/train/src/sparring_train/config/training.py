"""How long and how carefully to train: the `training` section."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring_train.config.section import PositiveFloat, PositiveInt, Section

__all__ = ["TrainingConfig"]


class TrainingConfig(Section):
    """Training ends after `epochs` or after `steps`, whichever comes first."""

    epochs: PositiveInt = Field(1, description="Times to go through the training data.")
    steps: PositiveInt | None = Field(
        None, description="The most steps to take; null sets no limit."
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
        description="Evaluate after every so many steps; null evaluates at the end only, which "
        "is done in any case.",
    )
    log_interval_seconds: PositiveFloat = Field(
        5.0, description="Time between two lines of progress where there is no terminal."
    )
    non_finite_gradients: Literal["raise", "skip"] = Field(
        "raise",
        description="What a NaN or infinite gradient does: `raise` ends training with an error "
        "before any row changes; `skip` leaves the rows concerned as they are and counts them.",
    )
