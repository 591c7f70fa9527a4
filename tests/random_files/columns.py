"""Columns of random files: the values that a reader should understand, and the texts of them."""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .dimensions import CHARACTERS, NONE, Chosen

Value = Any
"""An id (int or str), a number (float), a time (int, microseconds in UTC), a list of str, or None."""

MISSING = {NONE: "", "empty": ""}
"""Texts of missing values whose name in the table differs."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a random file.

    Attributes:
        roles: the roles that are right, the best one first.
        values: the values after parsing, one per row.
        texts: the same values in delimited text.
        natives: the same values in JSON and, with `arrow_type`, in Parquet.
        factors: the values may be multiplied by one of these: 12.5% is 12.5 or 0.125.
        tolerance: maximum difference of a value.
    """

    name: str
    roles: tuple[str, ...]
    values: Sequence[Value]
    texts: Sequence[str]
    natives: Sequence[Any]
    arrow_type: str = ""
    factors: tuple[float, ...] = (1.0,)
    tolerance: float = 0.0


class Names:
    """Chooses names that no other column has."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._used: set[str] = set()

    def pick(self, *names: str) -> str:
        free = [each for each in names if re.sub(r"\W|_", "", each.lower()) not in self._used]
        name = self._dice.choice(free)
        self._used.add(re.sub(r"\W|_", "", name.lower()))
        return name


# --- ids


def make_vocabulary(dice: random.Random, kind: str, size: int) -> list[Value]:
    """Returns the distinct ids of a user or an item."""
    if kind == "small integers":
        return [*range(1, size + 1)]
    if kind == "large integers":
        return sorted({dice.randrange(2**53, 2**63 - 1) for _ in range(size)})
    if kind == "strings":
        return [
            f"{dice.choice('abcdefgh')}{number}" for number in dice.sample(range(10, 9999), size)
        ]
    if kind == "leading zeros":
        return [f"{number:07d}" for number in dice.sample(range(1, 99999), size)]
    if kind == "uuid":
        return [make_uuid(dice) for _ in range(size)]
    if kind == "hex":
        # Some of them look like numbers: 12e456 and 123456.
        numbers = [f"{dice.randrange(1000, 9999)}e{dice.randrange(10, 99)}" for _ in range(3)]
        rest = [f"{dice.randrange(2**23, 2**28):07x}" for _ in range(size - 4)]
        return [*dict.fromkeys(["00ab3f9", *numbers, *rest])]
    if kind == "beyond 64 bits":
        return [str(10**24 + number * 7) for number in dice.sample(range(10**6), size)]
    raise AssertionError(kind)


def make_uuid(dice: random.Random) -> str:
    return str(uuid.UUID(int=dice.getrandbits(128), version=4))


def id_column(
    name: str, roles: tuple[str, ...], values: Sequence[Value], missing: str = ""
) -> Column:
    texts = [missing if each is None else str(each) for each in values]
    is_whole = all(each is None or isinstance(each, int) for each in values)
    return Column(name, roles, values, texts, values, "int64" if is_whole else "string")


USER_NAMES = {
    "usual": (
        "user_id",
        "userid",
        "userId",
        "uid",
        "visitorid",
        "user",
        "UserID",
        "visitor_id",
        "USER_ID",
    ),
    "rare": ("customer_id", "member", "account_id", "reader_id", "cust"),
}
ITEM_NAMES = {
    "usual": (
        "item_id",
        "itemid",
        "itemId",
        "movieid",
        "movieId",
        "item",
        "ItemID",
        "movie_id",
        "video_id",
    ),
    "rare": ("adgroup_id", "article_id", "asin", "creative_id", "sku"),
}


# --- labels

LABEL_NAMES = {
    "click": ("click", "label", "is_click", "clicked", "target", "Label", "isClick", "clk"),
    "rating": ("rating", "Rating", "stars", "ratings"),
    "unclear": ("y7", "outcome_a", "state", "f0", "result"),
}
LABEL_TEXTS = {
    "0/1": ("0", "1"), "True/False": ("False", "True"), "true/false": ("false", "true"),
    "yes/no": ("no", "yes"), "Y/N": ("N", "Y"),
}  # fmt: skip


def label_column(name: str, kind: str, scores: Sequence[float], is_decimal_comma: bool) -> Column:
    """Makes the label from `scores`, which are between 0 and 1."""
    if kind in LABEL_TEXTS:
        texts = [LABEL_TEXTS[kind][score > 0.6] for score in scores]
        values = [float(score > 0.6) for score in scores]
        if kind in ("yes/no", "Y/N"):
            return Column(name, ("label",), values, texts, texts, "string")
        is_text = kind.endswith("alse")
        natives: list[Any] = [bool(each) if is_text else int(each) for each in values]
        return Column(name, ("label",), values, texts, natives, "bool" if is_text else "int64")
    if kind == "1..5":
        values = [float(1 + min(4, int(score * 5))) for score in scores]
        whole = [int(each) for each in values]
        return Column(name, ("label",), values, [str(each) for each in whole], whole, "int64")
    values = [0.5 + 0.5 * min(9, int(score * 10)) for score in scores]
    texts = [f"{each:.1f}" for each in values]
    if is_decimal_comma:
        texts = [each.replace(".", ",") for each in texts]
    return Column(name, ("label",), values, texts, values, "float64")


# --- numbers

NUMBER_NAMES = {
    "small": ("age", "level", "tenure", "num_views"),
    "decimal": ("temperature", "distance_km", "height_m"),
    "rarely decimal": ("list_price", "stock"),
    "heavy tail": ("price", "income", "cost"),
    "thousands": ("mileage", "wealth"),
    "whole thousands": ("population", "salary"),
    "ambiguous whole thousands": ("population", "salary"),
    "currency": ("fee", "unit_price"),
    "percent": ("discount", "share_pct"),
}


RARE_ROW = 17
"""The only row of a column `rarely decimal` with decimals."""


def number_column(dice: random.Random, name: str, kind: str, size: int, chosen: Chosen) -> Column:
    """Makes a column of numbers of which a tenth is missing, if the container has such values."""
    values: list[float | None] = [draw_number(dice, kind, row) for row in range(size)]
    if kind in ("thousands", "whole thousands", "currency"):
        values[1], values[3] = 2612.0, 1234567.0
    if dice.random() < 0.6:
        for row in {2, *dice.sample(range(4, size), size // 12)} - {RARE_ROW}:
            values[row] = None
    missing = MISSING.get(chosen["missing"], chosen["missing"])
    texts = [missing if each is None else spell_number(each, kind, chosen) for each in values]
    is_whole = kind == "small" or kind.endswith("whole thousands")
    natives = [int(each) if is_whole and each is not None else each for each in values]
    roles = ("number", "id") if kind == "small" else ("number",)
    factors = (1.0, 0.01) if kind == "percent" else (1.0,)
    return Column(name, roles, values, texts, natives, "int64" if is_whole else "float64", factors)


def draw_number(dice: random.Random, kind: str, row: int) -> float:
    if kind == "small":
        return float(dice.randrange(0, 60))
    if kind == "decimal":
        return round(dice.gauss(0, 3), 3)
    if kind == "rarely decimal":
        return 0.9 if row == RARE_ROW else float(dice.randrange(0, 5000))
    if kind == "percent":
        return round(dice.random() * 100, 1)
    if kind.endswith("whole thousands"):
        return float(dice.randrange(1_000, 990_000))
    return round(dice.lognormvariate(5, 2), 2)


def spell_number(value: float, kind: str, chosen: Chosen) -> str:
    locale = chosen["locale"]
    if kind == "small":
        return str(int(value))
    if kind.endswith("whole thousands"):
        return f"{int(value):,}"
    if kind == "rarely decimal":
        text = str(int(value)) if value == int(value) else str(value)
    elif kind in ("thousands", "currency") and locale != NONE:
        text = f"{value:,.2f}"
    else:
        text = f"{value:.3f}" if kind == "decimal" else f"{value:.2f}"
    if locale == "de":
        text = text.translate(str.maketrans(",.", ".,"))
    if kind == "currency":
        # Latin-1 has no sign of the euro.
        sign = "EUR" if chosen["encoding"] == "latin-1" else "€"
        return f"{text} {sign}" if locale == "de" else f"${text}"
    return f"{text}%" if kind == "percent" else text


# --- categories and lists

WORDS = {
    "accents": ("Köln", "Málaga", "Besançon", "Århus", "São Paulo", "Berlin"),
    "wide": ("Łódź", "東京", "Αθήνα", "Köln", "São Paulo", "Berlin"),
    "strings with spaces": ("New York", "Los Angeles", "Rio de Janeiro", "Oslo", "Cape Town"),
    "codes": ("A12", "7x", "C003", "b-9", "1e5", "0x1F"),
    "leading zeros": ("00501", "02139", "90210", "10001", "07030", "60601"),
    "embedded": ('Smith, "Bob" & Sons', "Left DELIMITER right", "plain", "5' wide", 'Store "24"'),
}
CATEGORY_NAMES = {
    "accents": ("city", "town"),
    "strings with spaces": ("city", "region"),
    "codes": ("device_model", "placement"),
    "integer codes": ("category_id", "device_type", "site_id"),
    "leading zeros": ("zip", "zip_code"),
    "floats of integers": ("brand_id", "category_id"),
    "embedded": ("brand", "seller"),
}
MAX_INTEGER_CODE = 30


def category_column(dice: random.Random, name: str, kind: str, size: int, chosen: Chosen) -> Column:
    missing = MISSING.get(chosen["missing"], chosen["missing"])
    if kind in ("integer codes", "floats of integers"):
        values: list[Value] = [dice.randrange(1, MAX_INTEGER_CODE) for _ in range(size)]
        if kind == "integer codes":
            return id_column(name, ("id",), values)
        for row in (4, *dice.sample(range(5, size), size // 10)):
            values[row] = None
        texts = [missing if each is None else f"{each}.0" for each in values]
        natives = [None if each is None else float(each) for each in values]
        return Column(name, ("id",), values, texts, natives, "float64")
    can_be_wide = kind == "accents" and chosen["encoding"] != "latin-1"
    delimiter = CHARACTERS.get(chosen["delimiter"], chosen["delimiter"])
    words = [
        each.replace("DELIMITER", delimiter) for each in WORDS["wide" if can_be_wide else kind]
    ]
    values = [*words[:5], *(dice.choice(words) for _ in range(size - 5))]
    if kind == "accents" and chosen["delimiter"] == "space":
        values = [each.replace(" ", "-") for each in values]
    # "NA" in a column of strings can be Namibia, therefore only empty cells are missing.
    if (
        chosen["missing"] in ("empty", NONE)
        and chosen["container"] != "inter"
        and kind != "embedded"
    ):
        values[6] = None
    return id_column(name, ("id",), values)


LIST_NAMES = ("genres", "tags", "topics", "clicked_items", "keywords")
GENRES = (
    "Comedy",
    "Drama",
    "War",
    "Film Noir",
    "Sci-Fi",
    "Animé",
    "Action",
    "Crime",
    "Western",
    "News",
)
SPELLINGS: dict[str, Callable[[list[str]], str]] = {
    "json integers": lambda items: f"[{', '.join(items)}]",
    "json strings": lambda items: json.dumps(items, ensure_ascii=False),
    "python strings": repr,
    "^": "^".join,
    "|": "|".join,
    ", ": ", ".join,
    "space": " ".join,
    "native": str,
}


def list_column(dice: random.Random, name: str, kind: str, size: int, chosen: Chosen) -> Column:
    """Makes lists of up to five of ten elements; some are empty."""
    are_numbers = kind == "json integers" or (
        kind in ("space", "^", "native") and dice.random() < 0.4
    )
    elements = [str(each) for each in range(8, 18)] if are_numbers else list(GENRES)
    if "space" in (kind, chosen["delimiter"]):
        elements = [each.replace(" ", "") for each in elements]
    if chosen["encoding"] == "latin-1" or chosen["container"] == "inter":
        elements = [each.replace("é", "e") for each in elements]
    can_be_empty = kind.startswith(("json", "python", "native")) or chosen["delimiter"] != "space"
    lengths = [
        3,
        0 if can_be_empty else 1,
        1,
        4,
        *(dice.randrange(int(not can_be_empty), 6) for _ in range(size - 4)),
    ]
    values = [dice.sample(elements, each) for each in lengths]
    texts = [SPELLINGS[kind](each) for each in values]
    if kind != "native":
        return Column(name, ("list",), values, texts, texts, "string")
    natives = [[int(each) for each in row] for row in values] if are_numbers else values
    return Column(
        name, ("list",), values, texts, natives, f"list<{'int64' if are_numbers else 'string'}>"
    )


# --- columns that should not be features, or that look like ids

QUANTITIES = (
    "num_items",
    "item_count",
    "store_distance",
    "ad_length",
    "n_stores",
    "days_since_item",
)
LEAKS = {
    "leak number": ("play_time_ms", "gross_bookings", "purchase_amount", "play_time"),
    "leak binary": ("conversion", "purchase", "is_like", "booking_bool"),
    "leak without a name": ("units", "value_a", "basket"),
}


def nuisance_column(
    dice: random.Random, names: Names, kind: str, chosen: Chosen, labels: Sequence[float]
) -> Column:
    """Makes a column of the given kind; leaks are not 0 only where the label is 1."""
    size = len(labels)
    out = ("left out",)
    if kind == "row number":
        # pandas writes its index without a name; the name would be lost between spaces.
        unnamed = (
            ("", "Unnamed: 0")
            if chosen["container"] in ("csv", "csv.gz") and chosen["spaces"] == NONE
            else ()
        )
        first = dice.choice([0, 1, 10**15])
        step = 1 if first < 2 else 977
        numbers = [first + step * row for row in range(size)]
        return id_column(names.pick("id", "row_id", "rownum", *unnamed), out, numbers)
    if kind == "unique id":
        unique = [make_uuid(dice) for _ in range(size)]
        return id_column(names.pick("impression_id", "request_id", "event_id"), out, unique)
    if kind == "constant":
        value = dice.choice(["web", 1])
        return id_column(names.pick("platform", "version", "source"), out, [value] * size)
    if kind == "quantity":
        return number_column_of(
            names.pick(*QUANTITIES), ("number",), [dice.randrange(1, 500) for _ in range(size)]
        )
    if kind == "flag":
        flags = [dice.randrange(2) for _ in range(size)]
        return number_column_of(
            names.pick("is_mobile", "is_weekend", "has_photo"), ("number", "id"), flags
        )
    binary = kind == "leak binary"
    amounts = [
        (1 if binary else dice.randrange(1, 4000)) if label and dice.random() < 0.7 else 0
        for label in labels
    ]
    return number_column_of(names.pick(*LEAKS[kind]), out, amounts)


def number_column_of(name: str, roles: tuple[str, ...], whole: list[int]) -> Column:
    return Column(
        name, roles, [float(each) for each in whole], [str(each) for each in whole], whole, "int64"
    )
