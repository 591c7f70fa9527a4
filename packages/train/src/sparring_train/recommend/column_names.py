"""Names by which columns of users and items are recognized."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["ITEMS", "SESSIONS", "USERS", "find_first_named", "split_column_name"]

SESSIONS = frozenset(("session", "visit", "basket"))
USERS = SESSIONS | frozenset(
    ("user", "customer", "visitor", "member", "client", "uid", "email", "mail", "account", "buyer")
)
# fmt: off
ITEMS = frozenset((
    "item", "product", "movie", "film", "sku", "article", "book", "song", "track", "video", "ad", "iid",
    "pid",
))
# fmt: on


def split_column_name(name: str) -> set[str]:
    """Returns the words in a column's name: ``user`` and ``id`` for userId, user_ids and User-ID."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return {each.removesuffix("s") for each in re.split(r"[^a-z0-9]+", spaced)}


def find_first_named(names: Iterable[str], terms: frozenset[str]) -> str | None:
    """Returns the first name that contains one of the words, or None."""
    return next((each for each in names if split_column_name(each) & terms), None)
