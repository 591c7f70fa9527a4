"""Checks of what an attempt to save is given."""

from __future__ import annotations

import re
import secrets

from sparring.errors import InvalidArgumentError
from sparring.snapshot.manifest import Base
from sparring.snapshot.opening import locate
from sparring.snapshot.reading import open_snapshot
from sparring.storage.arguments import is_whole

__all__ = ["base_entry", "check_name", "check_place", "check_state_name", "checked_token"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{1,64}\Z")


def check_name(url: str, name: str) -> None:
    """Refuses a name that a snapshot cannot have.

    Raises:
        InvalidArgumentError: saying how to name it.
    """
    if not _NAME.match(name):
        raise InvalidArgumentError(
            f"snapshot {url}: its name {name!r} must start with a letter or underscore "
            "and hold only letters, digits, '_', '.', '-'; name it like step-000000123"
        )


def check_state_name(name: object) -> None:
    """Refuses a name that state cannot have.

    Raises:
        InvalidArgumentError: saying what a name may hold.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidArgumentError(
            f"state {name!r}: its name must start with a letter or underscore and hold only "
            "letters, digits, '_', '.', '-', at most 200 of them"
        )


def check_place(step: int, rank: int, world_size: int) -> None:
    """Refuses a step or a rank that cannot be.

    Raises:
        InvalidArgumentError: naming which, and what was found.
    """
    if not is_whole(step) or not 0 <= step < 2**62:
        raise InvalidArgumentError(f"step must be a whole number from 0, found {step!r}")
    if not is_whole(world_size) or world_size < 1:
        raise InvalidArgumentError(
            f"world_size must be a whole number from 1, found {world_size!r}"
        )
    if not is_whole(rank) or not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank must be from 0 to {world_size - 1}, found {rank!r}")


def checked_token(token: str | None, world_size: int) -> str:
    """The token; one is drawn where a single rank gives none.

    Raises:
        InvalidArgumentError: it is no token, or missing on several ranks.
    """
    if token is None and world_size == 1:
        return secrets.token_hex(8)
    if not isinstance(token, str) or not _TOKEN.match(token):
        raise InvalidArgumentError(
            f"token must be 1 to 64 letters, digits, '_' or '-', the same on all {world_size} ranks "
            f"of an attempt, found {token!r}; let rank 0 draw one and send it to the others"
        )
    return token


def base_entry(root: str, base: str | None) -> Base | None:
    """How a delta in `root` names its base.

    Raises:
        InvalidArgumentError: the base lies elsewhere.
    """
    if base is None:
        return None
    place, name = locate(base)
    if place.url != root:
        raise InvalidArgumentError(
            f"base {base} must lie beside its delta, in {root}; copy it there, or save a full "
            "snapshot"
        )
    return Base(name=name, hash=open_snapshot(base).manifest_hash)
