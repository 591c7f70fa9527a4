"""Kinds of the `data` section that are built in."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import LocalPath
from sparring_train.config.kinds import DataSection
from sparring_train.config.section import OpenFraction, PositiveInt
from sparring_train.data.columns import Feature, Schema

__all__ = ["CriteoData", "MovieLensData", "SyntheticCriteoData"]

_CLICKS = Schema(
    tuple(Feature(f"cat_{number}") for number in range(1, 27)),
    numbers=tuple(f"int_{number}" for number in range(1, 14)),
    label="binary",
)
_RATINGS = Schema((Feature("user"), Feature("item")), label="number")

_PATH = "Relative paths start at the file's folder."


class MovieLensData(DataSection):
    """Ratings in the `ratings.csv` format of MovieLens: userId, movieId, rating, timestamp."""

    kind: Literal["movielens"]
    path: LocalPath = Field(min_length=1, description=f"The `ratings.csv` file. {_PATH}")
    test_fraction: OpenFraction = Field(
        0.1, description="The part of the ratings, drawn by `seed`, that is kept for the test."
    )
    validation_fraction: OpenFraction | None = Field(
        None,
        description="The part of the other ratings, drawn by `seed`, that is kept for validation; null "
        "keeps none.",
    )
    batch_size: PositiveInt = Field(
        1024, description="Ratings in a step, over all ranks and micro-batches."
    )

    @property
    def columns(self) -> Schema:
        return _RATINGS

    @property
    def has_validation(self) -> bool:
        return self.validation_fraction is not None


class CriteoData(DataSection):
    """Click logs: a label, 13 integers and 26 hexadecimal strings, any of them missing."""

    kind: Literal["criteo"]
    path: LocalPath = Field(
        min_length=1,
        description="A file, or a folder of files that are read in order of name. Names that end "
        f"in `.parquet` are Parquet, all others text with tabs. {_PATH}",
    )
    test_path: LocalPath | None = Field(
        None,
        min_length=1,
        description=f"A file or folder for the test; then `test_fraction` is not used. {_PATH}",
    )
    test_fraction: OpenFraction = Field(
        0.1, description="The part of the samples, drawn by `seed`, that is kept for the test."
    )
    validation_path: LocalPath | None = Field(
        None,
        min_length=1,
        description=f"A file or folder for validation. {_PATH}",
    )
    validation_fraction: OpenFraction | None = Field(
        None,
        description="The part of the samples that are not for the test, drawn by `seed`, that is kept "
        "for validation; null keeps none.",
    )
    batch_size: PositiveInt = Field(
        4096, description="Samples in a step, over all ranks and micro-batches."
    )

    @property
    def columns(self) -> Schema:
        return _CLICKS

    @property
    def has_validation(self) -> bool:
        return self.validation_fraction is not None or self.validation_path is not None

    @model_validator(mode="after")
    def _has_one_validation(self) -> CriteoData:
        if self.validation_path is not None and self.validation_fraction is not None:
            raise PydanticCustomError(
                "validation_ways",
                "takes one source of samples for validation",
                {
                    "path": ("data", "validation_fraction"),
                    "found": "data.validation_path, too",
                    "expected": "one of them",
                },
            )
        return self


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
