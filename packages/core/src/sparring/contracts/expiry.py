"""Expiry: rows that no step has trained for some time are removed.

A visit is a step with a gradient for the key. Reads are none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sparring.errors import InvalidArgumentError

__all__ = ["Expiry", "ExpiryLike", "expiry_from"]


@dataclass(frozen=True, slots=True)
class Expiry:
    """Removes rows whose last visit is too old by one of the two limits.

    Args:
        after_steps: steps without a visit, at least 1; None: any number.
        after_days: days without a visit, above 0; None: any number.

    Raises:
        InvalidArgumentError: both are None, or one is out of range.
    """

    after_steps: int | None = None
    after_days: float | None = None

    def __post_init__(self) -> None:
        steps, days = self.after_steps, self.after_days
        if steps is None and days is None:
            raise InvalidArgumentError("expire: give after_steps or after_days, or both")
        if steps is not None and (type(steps) is not int or steps < 1):
            raise InvalidArgumentError(
                f"expire: after_steps must be a whole number from 1, found {steps!r}"
            )
        is_number = isinstance(days, (int, float)) and not isinstance(days, bool)
        if days is not None and not (is_number and 0 < days < math.inf):
            raise InvalidArgumentError(f"expire: after_days must be above 0, found {days!r}")

    def as_dict(self) -> dict[str, Any]:
        """For configs: ``{"after_steps": …, "after_days": …}``."""
        return asdict(self)


ExpiryLike = Expiry | Mapping[str, Any] | None
"""An `Expiry`, its arguments by name, or None: no row expires."""


def expiry_from(given: ExpiryLike) -> Expiry | None:
    """The `Expiry` that is meant.

    Raises:
        InvalidArgumentError: it is none.
    """
    if given is None or isinstance(given, Expiry):
        return given
    try:
        return Expiry(**given)
    except TypeError as error:
        raise InvalidArgumentError(
            f"expire: must be an Expiry or a mapping with after_steps or after_days, found {given!r}"
        ) from error
