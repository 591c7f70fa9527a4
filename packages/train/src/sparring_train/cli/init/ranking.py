"""The configurations that ``sparring init`` suggests for models that rank items for users."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow

from sparring.errors import DataError
from sparring_train.cli.init.findings import Doubt, Findings
from sparring_train.cli.init.label import ChosenLabel
from sparring_train.cli.init.text import (
    bad_row_lines,
    dictionary_lines,
    id_columns,
    label_lines,
    random_split,
)
from sparring_train.cli.init.words import Words, quote_yaml_name
from sparring_train.data.column_names import (
    ITEMS,
    SESSIONS,
    USERS,
    find_first_named,
    split_column_name,
)
from sparring_train.data.table.summary import ColumnSummary, TableSummary
from sparring_train.data.table.text.forms import POSITION

__all__ = [
    "RankedColumns",
    "RankingKind",
    "choose_ranked_columns",
    "choose_user_and_item",
    "has_user_and_item",
    "name_pair",
    "ranking_lines",
]

RankingKind = Literal["two_towers", "sequence"]


@dataclass(frozen=True, slots=True)
class RankedColumns:
    """Columns of a model that ranks items."""

    kind: RankingKind
    user: ColumnSummary
    item: ColumnSummary
    of_user: Sequence[ColumnSummary]
    """Further features of the user."""
    of_item: Sequence[ColumnSummary]
    time: ColumnSummary | None
    label: ChosenLabel | None
    positive: float | None
    """Minimum label of a positive row."""


def has_user_and_item(columns: Sequence[ColumnSummary], given: Words) -> bool:
    """Returns whether the names of two columns of ids suggest users and items, or the user named them."""
    return None not in choose_user_and_item([each for each in columns if _is_id(each)], given)


def choose_user_and_item(
    ids: Sequence[ColumnSummary], given: Words
) -> tuple[ColumnSummary | None, ColumnSummary | None]:
    """Returns the columns of users and items: those in the arguments, or those with the most usual names.

    Args:
        ids: columns of ids.
        given: arguments of the command.
    """
    single = [each for each in ids if _is_id(each)]
    chosen: list[ColumnSummary | None] = []
    for key, terms in (("user", USERS), ("item", ITEMS)):
        named = given.columns.get(key, [None])[0]
        rest = [each for each in single if each not in chosen]
        name = named or find_first_named([each.name for each in rest], terms)
        chosen.append(next((each for each in rest if each.name == name), None))
        if chosen[-1] is not None and chosen[-1].why != "given":
            chosen[-1].why = f"name of {key}s"
    return chosen[0], chosen[1]


def name_pair(
    single: Sequence[ColumnSummary],
    user: ColumnSummary | None,
    item: ColumnSummary | None,
    findings: Findings,
) -> tuple[str, str]:
    """Returns the names of the columns of users and items. If a name is unusual, adds a doubt.

    Args:
        single: at least two columns with one id per row.
        user: column of users, if known.
        item: column of items, if known.
        findings: receives the doubts.
    """
    names = [each.name for each in single]
    known = [None if each is None else each.name for each in (user, item)]
    chosen = list(known)
    for place, key in enumerate(("user", "item")):
        if known[place] is None:
            chosen[place] = next(name for name in names if name not in chosen)
            reason = f"no column of ids has a usual name of {key}s"
            choices = tuple(name for name in names if name not in known)
            findings.doubts.append(Doubt(reason, key, str(chosen[place]), choices))
    return str(chosen[0]), str(chosen[1])


def choose_ranked_columns(
    path: str,
    summary: TableSummary,
    columns: Sequence[ColumnSummary],
    label: ChosenLabel | None,
    kind: RankingKind | None,
    pair: tuple[ColumnSummary | None, ColumnSummary | None],
    findings: Findings,
) -> RankedColumns:
    """Chooses the columns of a model by their names and values.

    Args:
        path: path of the files, for messages.
        summary: columns of the files.
        columns: all columns except the label and the weight.
        label: label that selects the positive rows; None if all are positive.
        kind: kind of the model. None selects a sequence model if the rows belong to sessions and have
            times, and otherwise two towers.
        pair: columns of users and items, if known.
        findings: receives remarks and doubts.

    Raises:
        DataError: there are fewer than two columns of ids, or a sequence model has no column of
                times.
    """
    ids = [each for each in columns if _is_id(each)]
    times = [each for each in columns if each.role == "time"]
    if len(ids) < 2:
        raise DataError(
            f"{path}: a model that ranks items needs two columns of ids, users and items; give "
            "user=COLUMN item=COLUMN",
            path=path,
        )
    names = name_pair(ids, *pair, findings)
    user, item = (next(each for each in ids if each.name == name) for name in names)
    repeats = summary.num_sampled >= 2 * max(user.num_distinct, 1)
    is_session = bool(times) and repeats and bool(split_column_name(user.name) & {*SESSIONS})
    chosen = kind or ("sequence" if is_session else "two_towers")
    if chosen == "sequence" and summary.sample.keys.get("form") == "lines":
        times = [ColumnSummary(POSITION, "int64", "time", why="place in the line")]
    if chosen == "sequence" and not times:
        raise DataError(
            f"{path}: a sequence model needs a row per item that a user chose, with a column of times; "
            f"give time=COLUMN, one of {', '.join(each.name for each in columns)}; or form=lines, if "
            "each line contains a user and all items in order",
            path=path,
        )
    rest = [each for each in columns if each.role == "categorical" and each not in (user, item)]
    of_item = [each for each in rest if _describes(summary, each, item)]
    of_user = [each for each in rest if each not in of_item and _describes(summary, each, user)]
    if chosen == "sequence":
        of_item, of_user = [], []
    positive = None
    if label is not None:
        values = summary.values[label.name].drop_null().cast(pyarrow.float64()).to_numpy()
        positive = 1.0 if label.is_binary else float(np.quantile(values, 0.5, method="higher"))
        if not label.is_binary:
            findings.add(
                1, f"rows with at least {positive:g} are positive; these are about half", label.name
            )
    time = times[0] if times and repeats else None
    return RankedColumns(chosen, user, item, of_user, of_item, time, label, positive)


def ranking_lines(
    path: str, summary: TableSummary, found: RankedColumns, weight: str | None, left: Sequence[str]
) -> Iterator[str]:
    """Yields the lines of all sections of the configuration except `seed`.

    Args:
        path: path of the files.
        summary: columns of the files.
        found: roles of the columns.
        weight: column of weights in the loss.
        left: names of columns that are not used.
    """
    user, item = quote_yaml_name(found.user.name), quote_yaml_name(found.item.name)
    yield ""
    yield "data:"
    yield "  kind: table"
    yield f"  path: {json.dumps(path)}"
    if found.label is not None:
        yield from label_lines(found.label)
    yield from id_columns([found.user, found.item, *found.of_user, *found.of_item], summary.sample)
    # A sequence model does not need the user.
    required = item if found.kind == "sequence" else f"{user}, {item}"
    yield f"  required: [{required}]  # a row without an id in one of these is a bad row"
    if weight is not None:
        yield f"  weight: {quote_yaml_name(weight)}"
    if left:
        yield f"  # not used by this model: {', '.join(left)}"
    if found.time is not None:
        yield f"  time: {quote_yaml_name(found.time.name)}"
        if found.kind == "sequence":
            yield f"  history: {{of: {item}, by: {user}, length: 50}}  # the items of earlier rows"
    if found.time is not None and summary.sample.test_files is None:
        yield f"  split: {{leave_one_out: {user}}}  # the last row of each user is the test; the"
        yield "  # training contains later rows of other users"
    else:
        yield from random_split(summary)
    label = None if found.label is None else found.label.name
    time = None if found.time is None or found.time.name == POSITION else found.time.name
    must = [found.item.name, None if found.kind == "sequence" else found.user.name]
    yield from bad_row_lines(summary, [label, weight, time], [label, weight, time, *must])
    yield from dictionary_lines(summary, [found.user, found.item, *found.of_user, *found.of_item])
    size = 2 ** int(np.clip(np.log2(max(summary.num_rows, 1) / 50), 6, 11))
    yield f"  batch_size: {size}       # the items of a step are each other's negatives"
    yield ""
    yield "model:"
    yield from _model(found)
    yield ""
    yield "optimizer:"
    yield "  sparse: {name: adam, lr: 0.01}"
    if found.kind == "sequence":
        yield "  dense: {name: adam, lr: 0.001}"
    yield ""
    yield "training:"
    yield "  epochs: 10"
    yield ""
    yield "snapshots:"
    yield "  url: run                # the trained model"


def _model(found: RankedColumns) -> Iterator[str]:
    user, item = quote_yaml_name(found.user.name), quote_yaml_name(found.item.name)
    if found.kind == "sequence":
        yield "  # Use it: sparring recommend run --user USER, or --with history=ITEM,ITEM"
        yield "  kind: sequence          # predicts the next item by self-attention to earlier items"
        yield "  embedding_dim: 32"
        yield f"  item: {item}"
        yield f"  user: {user}            # exclude_seen: true leaves its items out of the test"
    else:
        yield "  # Use it: sparring recommend run --user USER"
        yield "  kind: two_towers        # a vector of the user and one of the item"
        yield "  embedding_dim: 32"
        for key, of, more in (("user", user, found.of_user), ("item", item, found.of_item)):
            names = ", ".join([of, *(quote_yaml_name(each.name) for each in more)])
            yield f"  {key}: [{names}]"
    if found.positive is not None:
        yield f"  positive: {found.positive:g}             # rows with a smaller label are ignored"


def _is_id(column: ColumnSummary) -> bool:
    return column.role == "categorical" and not column.is_list


def _describes(summary: TableSummary, column: ColumnSummary, of: ColumnSummary) -> bool:
    """Returns whether almost every id of `of` occurs with only one value of the column. If ids of `of`
    rarely repeat, this proves nothing, and the result is False."""
    values = summary.values[column.name]
    if pyarrow.types.is_nested(values.type):
        return False
    table = pyarrow.table({"of": summary.values[of.name], "value": values}).drop_null()
    count = len(table.column("of").unique())
    pairs = table.group_by(["of", "value"]).aggregate([]).num_rows
    return bool(count < 0.8 * table.num_rows and pairs <= 1.02 * count)
