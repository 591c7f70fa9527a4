"""Expiry (TTL): rows that have not received a gradient for some time are removed.

Only a step with a gradient for a key counts as an access to it; reads do not count.

Examples:
    >>> from sparring import Expiry, TableConfig
    >>> TableConfig("item", dim=16, expire=Expiry(after_days=30)).expire.as_dict()
    {'after_steps': None, 'after_days': 30.0}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from sparring.contracts.options import WholeNumber
from sparring.contracts.settings import SETTINGS, Number, checked
from sparring.errors import InvalidArgumentError

__all__ = ["Expiry", "ExpiryLike", "parse_expiry"]


@checked("expire")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class Expiry:
    """TTL of rows: a row is removed when no step has trained it for one of the two limits.

    Reads do not count as training. A resumed run counts from its snapshot.
    """

    after_steps: Annotated[
        Annotated[WholeNumber, Field(ge=1)] | None,
        Field(
            description="Maximum number of steps without training. A row may be kept an eighth longer. "
            "Null: no limit.",
        ),
    ] = None
    after_days: Annotated[
        Annotated[Number, Field(gt=0)] | None,
        Field(
            description="Maximum number of days without training, by the clock of rank 0, which is read "
            "every 100 steps. Null: no limit.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.after_steps is None and self.after_days is None:
            raise InvalidArgumentError(
                "expire: found neither limit; give after_steps or after_days, or both"
            )

    def as_dict(self) -> dict[str, Any]:
        """Returns ``{"after_steps": …, "after_days": …}``, for configurations."""
        return asdict(self)


ExpiryLike = Expiry | Mapping[str, Any] | None
"""An `Expiry`, a mapping of its arguments, or None if rows do not expire."""


def parse_expiry(given: ExpiryLike) -> Expiry | None:
    """Creates an `Expiry` from a mapping; an `Expiry` and None are returned unchanged.

    Args:
        given: an `Expiry`, a mapping of its arguments, or None if rows do not expire.

    Raises:
        InvalidArgumentError: `given` is of another type, or an argument is invalid.
    """
    if given is None or isinstance(given, Expiry):
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"expire: must be an Expiry or a mapping with after_steps or after_days, found {given!r}"
        )
    return Expiry(**{str(name): each for name, each in given.items()})
