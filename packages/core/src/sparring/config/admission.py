"""Which unseen ids earn a row: one model for each admission filter.

The numbers, their defaults and their meaning are those of `sparring.admission`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from sparring import admission
from sparring.config.section import Section

__all__ = ["AdmissionConfig", "BloomAdmission", "FrequencyAdmission", "ProbabilityAdmission"]


class _AdmissionSection(Section):
    def admission(self) -> admission.Admission | None:
        """The filter that `sparring.TableConfig` takes."""
        return admission.admission_from(self.model_dump())


class FrequencyAdmission(_AdmissionSection):
    """In the k-th step that trained on an id, counted exactly."""

    kind: Literal["frequency"]
    k: PositiveInt = Field(description="Steps.")
    memory_bytes: int = Field(
        64 << 20, ge=48, description="For the counters of a table, 12 bytes an id."
    )


class ProbabilityAdmission(_AdmissionSection):
    """In each step that trained on an id with one probability."""

    kind: Literal["probability"]
    p: float = Field(ge=0, le=1, description="The probability.")


class BloomAdmission(_AdmissionSection):
    """In the k-th step that trained on an id, or earlier by mistake: a counting Bloom filter."""

    kind: Literal["bloom"]
    k: int = Field(ge=1, le=255, description="Steps.")
    false_positive_rate: float = Field(
        0.01, ge=0.001, lt=1, description="The share of ids admitted too early, at `expected_keys`."
    )
    expected_keys: PositiveInt = Field(
        1_000_000, description="Distinct ids of a table for which the filter is made."
    )


AdmissionConfig = Annotated[
    FrequencyAdmission | ProbabilityAdmission | BloomAdmission, Field(discriminator="kind")
]
