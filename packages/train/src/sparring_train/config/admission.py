"""Which unseen ids earn a row: one model for each admission filter.

The numbers, their defaults and their meaning are those of `sparring.contracts.admission`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sparring.contracts import admission
from sparring.errors import InvalidArgumentError
from sparring_train.config.section import PositiveInt, Section, kind_from_name

__all__ = [
    "AdmissionConfig",
    "AllAdmission",
    "BloomAdmission",
    "FrequencyAdmission",
    "ProbabilityAdmission",
]


class _AdmissionSection(Section):
    @model_validator(mode="after")
    def _accepted_by_core(self) -> _AdmissionSection:
        try:
            self.admission()
        except InvalidArgumentError as error:
            raise ValueError(str(error)) from None
        return self

    def admission(self) -> admission.Admission | None:
        """The filter that `sparring.TableConfig` takes."""
        return admission.admission_from(self.model_dump())


class AllAdmission(_AdmissionSection):
    """Every id, in the first step that trained on it: for a table that has no filter among others
    that have one.
    """

    kind: Literal["all"]

    def admission(self) -> None:
        return None


class FrequencyAdmission(_AdmissionSection):
    """An id in the `k`-th step that trained on it, counted exactly. When the counters are full,
    all counts are halved and ids that came once are forgotten.
    """

    kind: Literal["frequency"]
    k: PositiveInt = Field(description="Steps.")
    memory_bytes: int = Field(
        64 << 20, ge=768, description="The most that a table's counters take, 16 bytes an id."
    )


class ProbabilityAdmission(_AdmissionSection):
    """An id in each step that trained on it with one probability, whatever came before."""

    kind: Literal["probability"]
    p: float = Field(ge=0, le=1, description="The probability.")


class BloomAdmission(_AdmissionSection):
    """An id in the `k`-th step that trained on it, or by mistake earlier: a counting Bloom filter
    of a fixed size, 5.4 bytes an expected id at the default rate, or 11 where `k` is above 16.
    """

    kind: Literal["bloom"]
    k: int = Field(ge=1, le=256, description="Steps.")
    false_positive_rate: float = Field(
        0.01,
        ge=1e-9,
        lt=1,
        description="The most that may be the share of ids admitted too early, while at most "
        "`expected_keys` distinct ones came.",
    )
    expected_keys: PositiveInt | None = Field(
        None,
        description="Distinct ids of a table for which the filter is made; null means a million.",
    )
    memory_bytes: Annotated[int, Field(ge=128)] | None = Field(
        None, description="The size of a table's filter, in place of `expected_keys`."
    )


AdmissionConfig = Annotated[
    Annotated[
        AllAdmission | FrequencyAdmission | ProbabilityAdmission | BloomAdmission,
        Field(discriminator="kind"),
    ],
    BeforeValidator(kind_from_name),
]
