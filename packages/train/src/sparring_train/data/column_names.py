"""Names by which columns of users, items, times, outcomes and quantities are recognized."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

__all__ = [
    "ITEMS",
    "LABELS",
    "OUTCOMES",
    "QUANTITIES",
    "SESSIONS",
    "TIMES",
    "USERS",
    "find_first_named",
    "is_outcome",
    "plain_name",
    "rank_of_name",
    "split_column_name",
]

# One name per line would make the lists too long. The first names are preferred.
# fmt: off
SESSIONS = ("session", "visit", "basket")
USERS = (
    "user", "uid", "visitor", "customer", "member", "reader", "viewer", "cust", "account", "client",
    "buyer", "person", "player", *SESSIONS, "email", "mail",
)
ITEMS = (
    "item", "iid", "movie", "product", "video", "film", "article", "book", "song", "track", "sku",
    "asin", "game", "news", "listing", "hotel", "ad", "adgroup", "creative", "pid",
)
LABELS = (
    "label", "click", "clicked", "is_click", "is_clicked", "clk", "target", "converted", "purchased",
    "bought", "rating", "ratings", "stars",
)
OUTCOMES = frozenset((
    "conversion", "conversions", "converted", "purchase", "purchased", "is_purchase", "bought",
    "is_bought", "buy", "is_buy", "order", "ordered", "is_order", "booking", "booking_bool", "booked",
    "is_booking", "like", "liked", "is_like", "follow", "is_follow", "comment", "is_comment", "forward",
    "is_forward", "share", "is_share", "is_hate", "is_favorite", "profile_enter", "is_profile_enter",
    "long_view", "play_time", "play_duration", "watch_time", "watch_ratio", "dwell_time", "dwell",
    "gross_bookings", "gross_bookings_usd", "revenue", "gmv", "payment", "pay", "is_pay",
    "purchase_amount", "order_amount", "click_bool", *LABELS[1:10],
)) - {"target"}
TIMES = frozenset((
    "time", "createdat", "updatedat", "timestamp", "ts", "date", "datetime", "at", "created", "when",
    "day",
))
QUANTITIES = frozenset((
    "num", "n", "nb", "count", "cnt", "number", "price", "cost", "amount", "distance", "length", "len",
    "size", "age", "day", "hour", "minute", "second", "sec", "ms", "since", "total", "sum", "avg",
    "mean", "score", "rate", "ratio", "pct", "percent", "share", "qty", "quantity", "income", "salary",
    "revenue", "duration", "height", "width", "weight", "views", "stock", "year", "population", "level",
    "tenure", "mileage", "value", "discount", "fee",
))
# fmt: on


def split_column_name(name: str) -> set[str]:
    """Returns the words in a column's name: ``user`` and ``id`` for userId, user_ids and userid."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    plain = set(re.split(r"[^a-z0-9]+", spaced))
    words = plain | {each.removesuffix("s") for each in plain}
    joined = {each.removesuffix("id") for each in words if each.endswith("id") and len(each) > 4}
    for ending in ("timestamp", "time", "date"):
        joined |= {ending for each in words if each.endswith(ending)}
    return words | joined | ({"id"} if joined & {*USERS, *ITEMS} else set())


def rank_of_name(name: str, terms: Sequence[str]) -> int | None:
    """Returns the place of the first term that is a word of the name; None if there is none."""
    words = split_column_name(name)
    return next(
        (place for place, each in enumerate(terms) if each.removesuffix("s") in words), None
    )


def find_first_named(names: Iterable[str], terms: Sequence[str]) -> str | None:
    """Returns the name that contains the earliest of the terms, or None."""
    ranked = [(rank, name) for name in names if (rank := rank_of_name(name, terms)) is not None]
    return min(ranked, key=lambda each: each[0])[1] if ranked else None


def plain_name(name: str) -> str:
    """Returns a name in lower case, with underscores between its words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.strip()).lower()
    return re.sub(r"[^a-z0-9]+", "_", spaced).strip("_")


def is_outcome(name: str) -> bool:
    """Returns whether a name is usual for something that is known only after the click."""
    plain = plain_name(name)
    return plain in OUTCOMES or re.sub(r"_(ms|s|sec|seconds|usd|eur)$", "", plain) in OUTCOMES
