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
    """A click log in Criteo format that a generator draws from a model that it knows.

    The best AUC that any model can reach on it is therefore known, and printed.
    """

    kind: Literal["synthetic_criteo"]
    samples: PositiveInt = Field(400_000, description="Samples to train on.")
    test_samples: PositiveInt = Field(50_000, description="Samples to test on.")
    validation_samples: PositiveInt | None = Field(
        None, description="Samples for validation; null draws none."
    )
    batch_size: PositiveInt = Field(
        4096, description="Samples in a step, over all ranks and micro-batches."
    )
    max_ids: int = Field(
        100_000,
        ge=2,
        le=2**32,
        description="Distinct ids that the feature with most of them can take.",
    )
    skew: float = Field(
        1.1,
        ge=0,
        le=4,
        description="The exponent of the power law that ids follow; 0 draws them evenly.",
    )
    missing_fraction: float = Field(
        0.05, ge=0, le=0.5, description="The part of integers and of ids that is missing."
    )

    @property
    def columns(self) -> Schema:
        return _CLICKS

    @property
    def has_validation(self) -> bool:
        return self.validation_samples is not None
