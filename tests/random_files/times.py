"""Columns of times of random files, in the forms of logs, programs and spreadsheets."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

from .columns import Column

UTC = timezone.utc
TIME_NAMES = {
    "snake": ("timestamp", "event_time", "created_at", "ts", "click_time"),
    "camel": ("eventTime", "createdAt", "timeStamp", "Timestamp", "clickTime"),
    "lower": ("timestamp", "eventtime", "createdat", "datetime", "time"),
}
DATE_NAMES = {
    "snake": ("date", "visit_date"),
    "camel": ("Date", "visitDate"),
    "lower": ("date", "visitdate"),
}
DAYS = ("dd.mm.yyyy", "date", "compact date", "native date", "ambiguous dd/mm/yyyy")
"""Kinds of times without a time of the day."""

FORMATS = {
    "iso": "%Y-%m-%d %H:%M:%S",
    "iso T": "%Y-%m-%dT%H:%M:%S",
    "12 hours": "%m/%d/%Y %I:%M:%S %p",
    "dd.mm.yyyy": "%d.%m.%Y",
    "dd.mm.yyyy hh:mm": "%d.%m.%Y %H:%M",
    "mm/dd/yyyy": "%m/%d/%Y",
    "ambiguous dd/mm/yyyy": "%d/%m/%Y",
    "date": "%Y-%m-%d",
    "compact date": "%Y%m%d",
}
UNITS = {"seconds": 1_000_000, "milliseconds": 1_000, "microseconds": 1}
"""Microseconds per unit of an integer time."""


def time_column(dice: random.Random, name: str, kind: str, size: int) -> Column:
    """Makes times of 60 days, with days above 12 unless the kind is ambiguous."""
    start = datetime(dice.randrange(2003, 2025), dice.randrange(1, 10), 1, tzinfo=UTC)
    moments = sorted(
        start + timedelta(microseconds=dice.randrange(60 * 86400 * 10**6)) for _ in range(size)
    )
    dice.shuffle(moments)
    if kind in DAYS or kind == "mm/dd/yyyy":
        moments = [each.replace(hour=0, minute=0, second=0, microsecond=0) for each in moments]
    if kind.startswith("ambiguous"):
        moments = [each.replace(day=1 + each.day % 12) for each in moments]
    resolution = resolutions(kind)
    values = [micros // resolution * resolution for micros in map(microseconds, moments)]
    return spell_times(dice, name, kind, values)


def resolutions(kind: str) -> int:
    """Returns the number of microseconds that differ between two neighboring times of a kind."""
    if kind in ("milliseconds", "iso Z"):
        return 1_000
    if kind in ("microseconds", "nanoseconds", "native nanoseconds", "native microseconds"):
        return 1
    return 60_000_000 if kind.endswith("hh:mm") else 1_000_000


def microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


def spell_times(dice: random.Random, name: str, kind: str, values: list[int]) -> Column:
    role = ("time",)
    if kind in UNITS:
        whole = [each // UNITS[kind] for each in values]
        return Column(name, role, values, [str(each) for each in whole], whole, "int64")
    if kind == "nanoseconds":
        whole = [each * 1_000 for each in values]
        return Column(name, role, values, [str(each) for each in whole], whole, "int64")
    if kind == "float seconds":
        values = [each + 500_000 for each in values]
        floats = [each / 1e6 for each in values]
        return Column(
            name, role, values, [f"{each:.1f}" for each in floats], floats, "float64", tolerance=1
        )
    if kind == "native nanoseconds":
        # A reader may round or cut the last three digits.
        exact = [each * 1_000 + dice.randrange(1, 999) for each in values]
        return Column(name, role, values, [], exact, "timestamp[ns]", tolerance=1)
    if kind.startswith("native"):
        types = {"microseconds": "timestamp[us]", "utc": "timestamp[us, UTC]", "date": "date32"}
        return Column(name, role, values, [], values, types[kind.split()[1]])
    moments = [moment_of(each) for each in values]
    if kind == "iso Z":
        texts = [f"{each:%Y-%m-%dT%H:%M:%S}.{each.microsecond // 1000:03d}Z" for each in moments]
    elif kind.startswith("iso offset"):
        hours = [-8, 1, 8] if kind == "iso offsets" else [dice.choice([-5, 2, 8])]
        texts = [
            each.astimezone(timezone(timedelta(hours=dice.choice(hours)))).isoformat()
            for each in moments
        ]
    else:
        texts = [each.strftime(FORMATS[kind]) for each in moments]
    natives = [int(each) for each in texts] if kind == "compact date" else texts
    return Column(name, role, values, texts, natives, "string")
