"""Data of kind `synthetic_criteo`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring_train.columns import Feature, Schema
from sparring_train.config.section import PositiveInt
from sparring_train.config.sections.kinds import DataSection

__all__ = ["SyntheticCriteoData"]

_CLICKS = Schema(
    tuple(Feature(f"cat_{number}") for number in range(1, 27)),
    numbers=tuple(f"int_{number}" for number in range(1, 14)),
    label="binary",
)


class SyntheticCriteoData(DataSection):
    """A click log in Criteo format, generated from a known model.

    Therefore the best AUC that a model can reach is known; it is printed.
    """

    kind: Literal["synthetic_criteo"]
    samples: PositiveInt = Field(400_000, description="Number of training samples.")
    test_samples: PositiveInt = Field(50_000, description="Number of test samples.")
    validation_samples: PositiveInt | None = Field(
        None, description="Number of validation samples; null generates none."
    )
    batch_size: PositiveInt = Field(
        4096, description="Samples per step, over all ranks and micro-batches."
    )
    max_ids: int = Field(
        100_000,
        ge=2,
        le=2**32,
        description="Number of distinct ids of the feature that has the most.",
    )
    skew: float = Field(
        1.1,
        ge=0,
        le=4,
        description="Exponent of the power-law distribution of ids; 0 is a uniform distribution.",
    )
    missing_fraction: float = Field(
        0.05, ge=0, le=0.5, description="Fraction of integers and of ids that are missing."
    )

    @property
    def columns(self) -> Schema:
        return _CLICKS

    @property
    def has_validation(self) -> bool:
        return self.validation_samples is not None
