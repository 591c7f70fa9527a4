"""Generates a random file of interactions, and states what a careful engineer would understand."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

from .columns import (
    CATEGORY_NAMES,
    ITEM_NAMES,
    LABEL_NAMES,
    LIST_NAMES,
    NUMBER_NAMES,
    USER_NAMES,
    Column,
    Names,
    Value,
    category_column,
    id_column,
    label_column,
    list_column,
    make_vocabulary,
    nuisance_column,
    number_column,
)
from .dimensions import LINES, NONE, choose, doubts_of
from .times import DATE_NAMES, DAYS, TIME_NAMES, time_column
from .writers import write_file

SAMPLED_ROWS = 20
"""Number of rows of which the truth contains each cell."""


@dataclass(frozen=True, slots=True)
class ColumnTruth:
    """What is right for one column.

    Attributes:
        name: the trimmed name without the type of RecBole; "" if the file does not name it.
        roles: the roles that are right: label, user, item, id, list, number, time, left out.
        values: the values of the first rows after parsing: ids as int or str, numbers and labels as
            float, times as int in microseconds (UTC), lists as lists of str, missing values as None.
        factors: the numbers may all be multiplied by one of these.
        tolerance: maximum difference of a value.
        distinct: number of distinct values, without missing ones; None for lists.
        missing: number of missing values.
    """

    name: str
    roles: tuple[str, ...]
    values: tuple[Value, ...]
    factors: tuple[float, ...]
    tolerance: float
    distinct: int | None
    missing: int


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right for one file.

    Attributes:
        path: the file, or the folder of files.
        chosen: the value of each dimension.
        columns: in the order of the file. A file with all items of a user per line has two: the user and
            the item of each event.
        num_rows: number of rows, without lines that are no rows.
        doubts: reasons for which stopping is right, too; a file without any is certain.
    """

    seed: int
    path: Path
    chosen: dict[str, str]
    columns: tuple[ColumnTruth, ...]
    num_rows: int
    doubts: tuple[str, ...]

    @property
    def is_certain(self) -> bool:
        return not self.doubts


def make_file(seed: int, folder: Path) -> Truth:
    """Writes the file of a seed into `folder`, and returns what is right for it.

    The same seed always results in the same bytes, apart from those that Parquet's writer adds.
    """
    dice = random.Random(seed)
    chosen = choose(dice)
    columns = make_columns(dice, chosen)
    path = write_file(folder / f"seed_{seed}", columns, chosen, dice)
    has_names = chosen["header"] != "absent" and chosen["container"] != "lines"
    truths = tuple(truth_of(each, has_names) for each in columns)
    return Truth(seed, path, chosen, truths, len(columns[0].values), doubts_of(chosen))


def truth_of(column: Column, has_names: bool) -> ColumnTruth:
    values = column.values
    known = [each for each in values if each is not None]
    distinct = None if column.roles[0] == "list" else len(set(known))
    sample = tuple(values[:SAMPLED_ROWS])
    name = column.name if has_names else ""
    missing = len(values) - len(known)
    return ColumnTruth(
        name, column.roles, sample, column.factors, column.tolerance, distinct, missing
    )


def make_columns(dice: random.Random, chosen: dict[str, str]) -> list[Column]:
    """Returns all columns of a file in their order."""
    size = dice.randrange(60, 401)
    if chosen["nuisance"] == "leak without a name":
        size = dice.randrange(300, 401)
    names = Names(dice)
    users, items = draw_pairs(dice, size, chosen)
    if chosen["container"] in LINES:
        users = sorted(users, key=str)
        return [
            id_column(names.pick("user", "user_id"), ("user",), users),
            id_column(names.pick("items", "item_ids"), ("item",), items),
        ]
    columns = [
        id_column(names.pick(*USER_NAMES[chosen["user_name"]]), accepted("user", chosen), users),
        id_column(names.pick(*ITEM_NAMES[chosen["item_name"]]), accepted("item", chosen), items),
    ]
    numbers = [
        number_column(dice, names.pick(*NUMBER_NAMES[chosen[each]]), chosen[each], size, chosen)
        for each in ("number", "second_number")
        if chosen[each] != NONE
    ]
    scores = make_scores(dice, columns, numbers)
    labels = [0.0] * size
    if chosen["label"] != NONE:
        kind = "rating" if chosen["label"].endswith("5") else "click"
        name = names.pick(*LABEL_NAMES["unclear" if chosen["label_name"] == "unclear" else kind])
        label = label_column(name, chosen["label"], scores, chosen["locale"] == "de")
        columns.append(label)
        labels = list(label.values)
    if chosen["time"] != NONE:
        kinds = DATE_NAMES if chosen["time"] in DAYS else TIME_NAMES
        name = names.pick(*kinds[chosen["time_name"]])
        columns.append(time_column(dice, name, chosen["time"], size))
    columns += numbers
    if (kind := chosen["category"]) != NONE:
        columns.append(category_column(dice, names.pick(*CATEGORY_NAMES[kind]), kind, size, chosen))
    if (kind := chosen["list"]) != NONE:
        columns.append(list_column(dice, names.pick(*LIST_NAMES), kind, size, chosen))
    for each in ("nuisance", "second_nuisance"):
        if chosen[each] != NONE:
            columns.append(nuisance_column(dice, names, chosen[each], chosen, labels))
    if dice.random() < 0.5:
        dice.shuffle(columns)
    # The index of pandas is the first column.
    return sorted(columns, key=lambda each: each.name not in ("", "Unnamed: 0"))


def accepted(role: str, chosen: dict[str, str]) -> tuple[str, ...]:
    """Returns the right roles: a column with a rare name may be any id."""
    return (role,) if chosen[f"{role}_name"] == "usual" else (role, "id")


def draw_pairs(
    dice: random.Random, size: int, chosen: dict[str, str]
) -> tuple[list[Value], list[Value]]:
    """Returns a user and an item per row; each occurs several times, and some are frequent."""
    drawn: list[list[Value]] = []
    for role, share in (("user", 8), ("item", 10)):
        known = make_vocabulary(dice, chosen[role], max(10, size // share))
        dice.shuffle(known)
        weights = [1 / (rank + 3) for rank in range(len(known))]
        drawn.append(dice.choices(known, weights, k=size))
    return drawn[0], drawn[1]


def make_scores(dice: random.Random, ids: list[Column], numbers: list[Column]) -> list[float]:
    """Returns a score between 0 and 1 per row, which depends on the user, the item and the numbers."""
    strengths: dict[tuple[str, Value], float] = {}
    scores = []
    for row in range(len(ids[0].values)):
        total = dice.gauss(0, 0.7)
        for column in ids:
            total += strengths.setdefault((column.name, column.values[row]), dice.gauss(0, 1))
        for column in numbers:
            value = column.values[row]
            total += (
                0.0 if value is None else 0.2 * math.copysign(math.log1p(abs(value)), value) - 0.5
            )
        scores.append(1 / (1 + math.exp(-total)))
    # The first two rows have different labels, so that each sample has both.
    return [0.95, 0.05, *scores[2:]]
