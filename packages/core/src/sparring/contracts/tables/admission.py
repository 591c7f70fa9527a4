"""Admission filters, which decide whether a new id gets a row.

Most ids of a recommender occur only once. A filter prevents them from using memory: in each step
with a gradient for an id that has no row, the filter decides whether the row is created. If not, the
gradient is dropped and counted, and lookups of the id still return its initial value. An id that has
a row always keeps receiving gradients; after an eviction it is new again.

Filters count steps, not occurrences, so the result does not depend on micro-batches and ranks. A
step that raises is not counted. Each rank has a filter for the keys that it owns; all sizes are per
table and rank.
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
    """Base class of all admission filters. `kind` is the name in configurations.

    Examples:
        >>> from sparring import Bloom, Frequency, Probability, TableConfig
        >>> TableConfig("item", dim=16, admission=Frequency(k=3)).admission.as_dict()
        {'kind': 'frequency', 'k': 3, 'memory_bytes': 67108864}
        >>> TableConfig("item", dim=16, admission={"kind": "probability", "p": 0.1}).admission
        Probability(p=0.1)
        >>> Bloom(k=2, expected_keys=50_000_000).false_positive_rate
        0.01
    """

    kind: ClassVar[str] = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"kind": …, parameter: value, …}``, for configurations and manifests."""
        return {"kind": self.kind} | asdict(self)


AdmissionLike = Admission | str | Mapping[str, Any] | None
"""An `Admission`, ``{"kind": name, parameter: value}``, or None to admit every id."""


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Frequency(Admission):
    """Admits an id in the `k`-th step that has a gradient for it, with exact counts.

    When the counters are full, all counts are halved and ids with a count of one are removed.
    Therefore an id may be admitted later, but never earlier.
    """

    k: Annotated[
        WholeNumber,
        Field(ge=1, le=2**32 - 1, description="Number of steps with a gradient until admission."),
    ]
    memory_bytes: Annotated[
        WholeNumber,
        Field(
            ge=768,
            le=2**50,
            description="Maximum size of a table's counters, 16 bytes per id; they start small and grow.",
        ),
    ] = 64 << 20
    kind: ClassVar[str] = "frequency"


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Probability(Admission):
    """Admits an id with a fixed probability in each step that has a gradient for it.

    The decision is a pure function of the table's seed and name, the step and the id.
    """

    p: Annotated[Number, Field(ge=0, le=1, description="The probability.")]
    kind: ClassVar[str] = "probability"


@checked("admission")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Bloom(Admission):
    """Admits an id in the `k`-th step that has a gradient for it, or in rare cases earlier.

    It is a counting Bloom filter of fixed size: 5.4 bytes per expected id at the default rate, or 11
    if `k` is above 16.
    """

    # The formula and its sources are in native/kernels/bloom_shape.h.
    k: Annotated[
        WholeNumber,
        Field(ge=1, le=256, description="Number of steps with a gradient until admission."),
    ]
    false_positive_rate: Annotated[
        Number,
        Field(
            ge=1e-9,
            lt=1,
            description="Maximum share of ids that are admitted too early, as long as there are at most "
            "`expected_keys` distinct ids.",
        ),
    ] = 0.01
    expected_keys: Annotated[
        Annotated[WholeNumber, Field(ge=1, le=2**40)] | None,
        Field(
            description="Number of distinct ids for which the filter is sized; null means a million."
        ),
    ] = None
    memory_bytes: Annotated[
        Annotated[WholeNumber, Field(ge=128, le=2**50)] | None,
        Field(description="Size of a table's filter, instead of `expected_keys`."),
    ] = None
    kind: ClassVar[str] = "bloom"

    def __post_init__(self) -> None:
        if self.expected_keys is not None and self.memory_bytes is not None:
            raise InvalidArgumentError(
                f"admission bloom: found both expected_keys={self.expected_keys} and memory_bytes="
                f"{self.memory_bytes}; give only one of them, because it determines the other"
            )

    @property
    def size(self) -> tuple[int, int]:
        """Expected keys and bytes; one of them is 0, and is computed from the other."""
        if self.memory_bytes is not None:
            return 0, self.memory_bytes
        return self.expected_keys or 1_000_000, 0


ADMISSIONS: dict[str, type[Admission]] = {
    kind.kind: kind for kind in (Frequency, Probability, Bloom)
}


def parse_admission(value: AdmissionLike) -> Admission | None:
    """Creates an admission filter from a mapping; an `Admission` and None are returned unchanged.

    Args:
        value: an `Admission`, ``{"kind": name, parameter: value}``, or None to admit every id.

    Raises:
        InvalidArgumentError: unknown name or parameter, or a parameter is missing or out of range.
    """
    if value is None or isinstance(value, Admission):
        return value
    if not isinstance(value, (str, Mapping)):
        raise InvalidArgumentError(
            f"admission: must be an Admission, a mapping with 'kind', or None, found {value!r}; pass for "
            "example {'kind': 'frequency', 'k': 3}"
        )
    made: Admission = parse_setting("admission", ADMISSIONS, value)
    return made
