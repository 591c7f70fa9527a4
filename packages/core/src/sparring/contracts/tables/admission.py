"""Admission filters: which unseen ids earn a row.

Most ids of a recommender come once and never again. A filter keeps them from taking memory: an id
that has no row is asked about in each step that has a gradient for it, and as long as the answer is
no its gradient is dropped and counted, and it goes on reading its initial value. An id that has a
row is not asked about again; one that was evicted is unseen again.

What is counted is steps, not occurrences: the number is the same for any micro-batches and ranks.
A step that raises counts nothing. Each rank has a filter for the keys that it owns, so all sizes
are those of one table on one rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from sparring.contracts.options import WholeNumber
from sparring.contracts.settings import SETTINGS, Number, checked, parse_setting
from sparring.errors import InvalidArgumentError

__all__ = [
    "ADMISSIONS",
    "Admission",
    "AdmissionLike",
    "Bloom",
    "Frequency",
    "Probability",
    "parse_admission",
]


@dataclass(frozen=True, slots=True, config=SETTINGS)
class Admission:
    """The base of all admission filters. `kind` is the name in configs."""

    kind: ClassVar[str] = ""

    def as_dict(self) -> dict[str, Any]:
        """For configs and manifests: ``{"kind": …, parameter: value, …}``."""
        return {"kind": self.kind} | asdict(self)


AdmissionLike = Admission | str | Mapping[str, Any] | None
"""An `Admission`, ``{"kind": name, parameter: value}``, or None, which admits every id."""


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Frequency(Admission):
    """An id in the `k`-th step that trained on it, counted exactly. When the counters are full,
    all counts are halved and ids that came once are forgotten: an id may then be admitted later,
    never earlier.
    """

    k: Annotated[WholeNumber, Field(ge=1, le=2**32 - 1, description="Steps.")]
    memory_bytes: Annotated[
        WholeNumber,
        Field(
            ge=768,
            le=2**50,
            description="The most that a table's counters take, 16 bytes an id; they begin small.",
        ),
    ] = 64 << 20
    kind: ClassVar[str] = "frequency"


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Probability(Admission):
    """An id in each step that trained on it with one probability, whatever came before. The answer
    is a function of the table's seed and name, the step and the id.
    """

    p: Annotated[Number, Field(ge=0, le=1, description="The probability.")]
    kind: ClassVar[str] = "probability"


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Bloom(Admission):
    """An id in the `k`-th step that trained on it, or by mistake earlier: a counting Bloom filter
    of a fixed size, 5.4 bytes an expected id at the default rate, or 11 where `k` is above 16.
    """

    # The formula and its sources are in native/kernels/bloom_shape.h.
    k: Annotated[WholeNumber, Field(ge=1, le=256, description="Steps.")]
    false_positive_rate: Annotated[
        Number,
        Field(
            ge=1e-9,
            lt=1,
            description="The most that may be the share of ids admitted too early, while at most "
            "`expected_keys` distinct ones came.",
        ),
    ] = 0.01
    expected_keys: Annotated[
        Annotated[WholeNumber, Field(ge=1, le=2**40)] | None,
        Field(
            description="Distinct ids of a table for which the filter is made; null means a million."
        ),
    ] = None
    memory_bytes: Annotated[
        Annotated[WholeNumber, Field(ge=128, le=2**50)] | None,
        Field(description="The size of a table's filter, in place of `expected_keys`."),
    ] = None
    kind: ClassVar[str] = "bloom"

    def __post_init__(self) -> None:
        if self.expected_keys is not None and self.memory_bytes is not None:
            raise InvalidArgumentError(
                f"admission bloom: found both expected_keys={self.expected_keys} and memory_bytes="
                f"{self.memory_bytes}; give one of them, as the other follows from it"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Expected keys and bytes; one of them is 0, which means that it follows from the other."""
        if self.memory_bytes is not None:
            return 0, self.memory_bytes
        return self.expected_keys or 1_000_000, 0


ADMISSIONS: dict[str, type[Admission]] = {
    kind.kind: kind for kind in (Frequency, Probability, Bloom)
}


def parse_admission(value: AdmissionLike) -> Admission | None:
    """A filter from itself, or ``{"kind": name, parameter: value}``; None admits every id.

    Raises:
        InvalidArgumentError: unknown name or parameter, one that is missing or out of range.
    """
    if value is None or isinstance(value, Admission):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidArgumentError(
            f"admission: must be an Admission, a mapping with 'kind', or None, found {value!r}"
        )
    made: Admission = parse_setting("admission", ADMISSIONS, value)
    return made
