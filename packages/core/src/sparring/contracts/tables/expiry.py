"""Expiry: rows that no step has trained for some time are removed.

A visit is a step with a gradient for the key. Reads are none.
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
    """Rows that no step has trained for some time are removed: by one of the two limits. A run that
    goes on counts from its snapshot; reads are no training.
    """

    after_steps: Annotated[
        Annotated[WholeNumber, Field(ge=1)] | None,
        Field(
            description="Steps without training. A row stays for an eighth longer at most. Null: any "
            "number.",
        ),
    ] = None
    after_days: Annotated[
        Annotated[Number, Field(gt=0)] | None,
        Field(
            description="Days without training, by the clock of rank 0, which is looked at every 100 "
            "steps. Null: any number.",
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.after_steps is None and self.after_days is None:
            raise InvalidArgumentError("expire: give after_steps or after_days, or both")

    def as_dict(self) -> dict[str, Any]:
        """For configs: ``{"after_steps": …, "after_days": …}``."""
        return asdict(self)


ExpiryLike = Expiry | Mapping[str, Any] | None
"""An `Expiry`, its arguments by name, or None: no row expires."""


def parse_expiry(given: ExpiryLike) -> Expiry | None:
    """The `Expiry` that is meant.

    Raises:
        InvalidArgumentError: it is none.
    """
    if given is None or isinstance(given, Expiry):
        return given
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"expire: must be an Expiry or a mapping with after_steps or after_days, found {given!r}"
        )
    return Expiry(**{str(name): each for name, each in given.items()})
