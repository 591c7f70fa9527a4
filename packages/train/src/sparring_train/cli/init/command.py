"""``sparring init``: writes a configuration for files of examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import typer

from sparring.adapter import find_closest_name
from sparring.errors import DataError
from sparring_cli import add_command, make_console, print_document
from sparring_train.cli.init.findings import Doubt, Findings, resolve
from sparring_train.cli.init.label import (
    NO_LABEL,
    ChosenLabel,
    choose_label,
    leave_out_outcomes,
)
from sparring_train.cli.init.ranking import (
    RankingKind,
    choose_ranked_columns,
    choose_user_and_item,
    has_user_and_item,
    name_pair,
    ranking_lines,
)
from sparring_train.cli.init.text import (
    bad_row_lines,
    dictionary_lines,
    id_columns,
    label_lines,
    random_split,
)
from sparring_train.cli.init.understanding import ColumnRow, Understanding, describe_columns
from sparring_train.cli.init.words import ROLES, Words, apply_keys, parse_words, quote_yaml_name
from sparring_train.config.reading.loader import parse_config
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.summary import ColumnSummary, TableSummary, summarize_table

__all__ = ["ModelOption", "YesOption", "add_init", "understand"]

_RARE_SHARE = 0.1
"""Minimum share of values that occur once for which an admission filter is suggested."""

ModelOption = Annotated[
    RankingKind | None,
    typer.Option(
        help="Model that ranks items for users: two_towers, or sequence, which uses earlier items. "
        "Default: one of them if the files have no label, but columns of users and items.",
    ),
]
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Decide doubts about the columns by their defaults, without questions."
    ),
]


def add_init(application: typer.Typer) -> None:
    add_command(
        application,
        "init",
        init,
        examples=[
            "sparring init clicks.parquet label=clicked --output run.yaml",
            "sparring init ratings.csv training.epochs=3 --model two_towers",
        ],
    )


def init(
    path: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A file of examples, a folder, a pattern or a URL."),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE=COLUMN | KEY=VALUE",
            help="Roles of columns, if the guess is wrong: label=clicked (label=none: no label), user=u, "
            "item=i, weight=w, time=at, categorical=a,b, numeric=c, skip=d. Keys of the configuration: a "
            "key of the section data, such as bad_rows=skip, or a key with its section, such as "
            "training.epochs=3.",
            show_default=False,
        ),
    ] = None,
    model: ModelOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: standard output."),
    ] = None,
    yes: YesOption = False,
) -> None:
    """Read the first rows of files, and print a configuration that trains on them."""
    found = understand(path, words or (), model, accepts_defaults=yes)
    found.show(make_console(is_error=True))
    print_document(found.text, output)


def understand(
    path: str,
    words: Sequence[str],
    model: RankingKind | None = None,
    *,
    command: str = "init",
    more: Sequence[str] = (),
    accepts_defaults: bool = False,
) -> Understanding:
    """Reads the first rows of files, and chooses the roles of columns and a model.

    Args:
        path: a file, a folder, a pattern or a URL.
        words: roles of columns and keys of the configuration; see `init`.
        model: model that ranks items; None chooses a model.
        command: the command that calls it, for messages.
        more: further keys, which messages do not contain.
        accepts_defaults: whether doubts are decided by their defaults.

    Raises:
        ConfigError: an argument is invalid.
        DataError: the files cannot be read, contain no columns to train on, or leave a doubt that nobody
            decides.
    """
    line = ["sparring", command, path, *(("--model", model) if model else ())]
    given = parse_words([*words, *more])
    while True:
        findings = Findings()
        summary = summarize_table(path, given.data)
        findings.doubts += _doubts_of_reading(summary, given.columns.get("skip", ()))
        if not findings.doubts:
            lines, rows = _configuration(path, summary, given, model, findings)
        if not findings.doubts:
            break
        asked = [*line, *words]
        words = [
            *words,
            *resolve(path, findings.doubts, asked, accepts_defaults=accepts_defaults),
        ]
        given = parse_words([*words, *more])
    if summary.num_bad:
        findings.add(0, f"bad rows: {summary.num_bad:,}; the first: {summary.first_bad}")
    remarks = findings.remarks
    about = "" if summary.sample.is_exact else "about "
    head = [
        f"# Written by `sparring init {path}`.",
        f"# Based on {summary.num_sampled:,} of {about}{summary.num_rows:,} rows.",
        *(f"# UNSURE: {each}" for each in remarks),
        "",
        "seed: 1",
    ]
    columns = ["", "report:", "  columns:                # what was understood"]
    columns += [
        f"    {quote_yaml_name(each.name)}: {json.dumps(_in_words(each))}"
        for each in rows
        if each.name
    ]
    text = "\n".join(apply_keys([*head, *lines, *columns], given.keys)) + "\n"
    # Validates the text like `sparring train` does.
    config = parse_config(text, source="the configuration of sparring init")
    return Understanding(
        path,
        text,
        cast(TableData, config.data),
        rows,
        remarks,
        summary.num_sampled,
        summary.sample.values,
    )


def _doubts_of_reading(summary: TableSummary, skipped: Sequence[str]) -> list[Doubt]:
    sample = summary.sample
    found = [
        Doubt(f"{name}: {each}", "skip", name)
        for name, each in sample.unlike.items()
        if name not in skipped
    ]
    if sample.header_doubt is not None:
        names = ",".join(f"column_{number}" for number in range(1, len(summary.columns) + 1))
        found.append(
            Doubt(f"{sample.header_doubt}; name all columns", "column_names", f"[{names}]")
        )
    if sample.date_doubt is not None:
        found.append(Doubt(sample.date_doubt, "date_order", "dmy", ("dmy", "mdy")))
    return found


def _in_words(row: ColumnRow) -> str:
    parts = [f"{row.role}: {row.why}", row.counts, ", ".join(row.examples)]
    return "; ".join(filter(None, parts))


def _configuration(
    path: str, summary: TableSummary, given: Words, model: RankingKind | None, findings: Findings
) -> tuple[list[str], list[ColumnRow]]:
    """Returns the lines of the configuration, and the table of the columns."""
    _apply_roles(path, summary, given)
    for remark in summary.sample.unsure:
        findings.add(2, remark)
    label = choose_label(path, summary, given, findings, may_guess=model is None)
    if label is None and model is None and not has_user_and_item(summary.columns, given):
        raise _no_label(path, summary)
    weight = given.columns.get("weight", [None])[0]
    label_name = None if label is None else label.name
    columns = [each for each in summary.columns if each.name not in (label_name, weight)]
    named = {each for names in given.columns.values() for each in names}
    if label is not None and label.is_binary:
        leave_out_outcomes(summary, columns, label, named, findings)
    ids = [each for each in columns if each.role == "categorical"]
    summary.choose_types(ids)
    for each in columns:
        if each.unsure:
            findings.add(1 if each.role == "left out" else 3, each.unsure, each.name)
    if not ids:
        raise DataError(
            f"{path}: found no column of ids; give categorical=COLUMN, one of "
            f"{', '.join(each.name for each in columns)}",
            path=path,
        )
    user, item = choose_user_and_item(ids, given)
    roles = {
        each.name: (_role(each, user, item), each.why)
        for each in summary.columns
        if each.name in {one.name for one in columns}
    }
    if label is None or model is not None:
        found = choose_ranked_columns(path, summary, columns, label, model, (user, item), findings)
        used = {each.name for each in (found.user, found.item, *found.of_user, *found.of_item)}
        used |= set() if found.time is None else {found.time.name}
        roles |= {
            found.user.name: ("user", found.user.why),
            found.item.name: ("item", found.item.why),
        }
        left = [each.name for each in columns if each.name not in used]
        lines = [*ranking_lines(path, summary, found, weight, left)]
    else:
        pair = _pair(ids, user, item, label, path, findings) if not label.is_binary else None
        times = [each.name for each in columns if each.role == "time"]
        left = [] if pair is None else [name for name in roles if name not in (*pair, *times[:1])]
        lines = [*_data(path, summary, columns, label, weight, pair), *_model(columns, label, pair)]
    for name in left:
        if roles[name][0] != "left out":
            roles[name] = (roles[name][0], f"{roles[name][1]}, not used")
    if label is not None:
        roles[label.name] = ("label", label.why)
    if weight is not None:
        roles[weight] = ("weight", "given")
    order = [each.name for each in summary.columns]
    counts = {each.name: each.num_distinct or None for each in summary.columns}
    known = {name: roles[name] for name in order}
    return lines, [*describe_columns(summary.values, known, counts)]


def _no_label(path: str, summary: TableSummary) -> DataError:
    usable = [each.name for each in summary.columns if each.name not in summary.sample.unusable]
    return DataError(
        f"{path}: found no column with the name of a label; give label=COLUMN, one of "
        f"{', '.join(usable)}; or --model two_towers, where each row is "
        "something that a user did with an item",
        path=path,
    )


def _apply_roles(path: str, summary: TableSummary, given: Words) -> None:
    """Gives columns the roles of the arguments."""
    by_name = {each.name: each for each in summary.columns}
    for role, names in given.columns.items():
        for name in names:
            if name not in by_name:
                if role == "label" and name == NO_LABEL:
                    continue
                meant = find_closest_name(name, by_name)
                hint = f"; did you mean {meant}?" if meant else f", found {', '.join(by_name)}"
                raise DataError(
                    f"reading {path}: there is no column {name!r}{hint}", path=path, column=name
                )
            if name in summary.sample.unusable and role != "skip":
                reason = summary.sample.unusable[name]
                raise DataError(
                    f"{path}: column {name!r} cannot be used: {reason}. Correct the files, or do not "
                    f"assign it to {role}",
                    path=path,
                    column=name,
                )
    for key, role in ROLES.items():
        for name in given.columns.get(key, ()):
            by_name[name].role, by_name[name].why, by_name[name].unsure = role, "given", None


def _role(column: ColumnSummary, user: ColumnSummary | None, item: ColumnSummary | None) -> str:
    if column.role == "categorical":
        if column.is_list:
            return "list"
        return "user" if column is user else "item" if column is item else "id"
    return "number" if column.role == "numeric" else column.role


def _pair(
    ids: Sequence[ColumnSummary],
    user: ColumnSummary | None,
    item: ColumnSummary | None,
    label: ChosenLabel,
    path: str,
    findings: Findings,
) -> tuple[str, str]:
    """Returns the user and item columns of a matrix factorization."""
    single = [each for each in ids if not each.is_list]
    if len(single) < 2:
        raise DataError(
            f"{path}: the label {label.name} is a number, for which a matrix factorization needs two "
            "columns of ids, users and items; give user=COLUMN item=COLUMN",
            path=path,
            column=label.name,
        )
    return name_pair(single, user, item, findings)


def _data(
    path: str,
    summary: TableSummary,
    columns: Sequence[ColumnSummary],
    label: ChosenLabel,
    weight: str | None,
    pair: tuple[str, str] | None,
) -> Iterator[str]:
    ids = [each for each in columns if each.role == "categorical"]
    numbers = [each for each in columns if each.role == "numeric"]
    times = [each for each in columns if each.role == "time"]
    yield ""
    yield "data:"
    yield "  kind: table"
    yield f"  path: {json.dumps(path)}"
    yield from label_lines(label)
    yield from id_columns(ids, summary.sample)
    required = pair or ()
    if required:
        names = ", ".join(map(quote_yaml_name, required))
        yield f"  required: [{names}]  # a row without an id in one of these is a bad row"
    if numbers:
        yield f"  numeric: [{', '.join(quote_yaml_name(each.name) for each in numbers)}]"
        skewed = [quote_yaml_name(each.name) for each in numbers if each.is_skewed]
        if skewed:
            yield f"  log1p: [{', '.join(skewed)}]       # these span several orders of magnitude"
    if weight is not None:
        yield f"  weight: {quote_yaml_name(weight)}"
    left = [each.name for each in columns if each.role == "left out"]
    left += [each.name for each in times[1:]]
    if left:
        yield f"  # left out: {', '.join(left)}"
    if times:
        yield f"  time: {quote_yaml_name(times[0].name)}"
    if times and summary.sample.test_files is None and times[0].num_distinct > 1:
        yield "  split: {time: 0.1}      # the latest tenth is the test"
    else:
        yield from random_split(summary)
    used = [label.name, weight, *(each.name for each in (*numbers, *times[:1]))]
    must = [label.name, weight, *(each.name for each in times[:1]), *required]
    yield from bad_row_lines(summary, used, must)
    yield from dictionary_lines(summary, ids)
    size = 2 ** int(np.clip(np.log2(max(summary.num_rows, 1) / 200), 4, 12))
    yield f"  batch_size: {size}"


def _model(
    columns: Sequence[ColumnSummary], label: ChosenLabel, pair: tuple[str, str] | None
) -> Iterator[str]:
    ids = [each for each in columns if each.role == "categorical"]
    yield ""
    yield "model:"
    if pair is None:
        yield "  kind: dlrm              # predicts a probability from ids and numbers"
        yield "  embedding_dim: 16"
        yield "  bottom_mlp: [64, 32]"
        yield "  top_mlp: [64, 32]"
    else:
        user, item = pair
        yield "  kind: matrix_factorization  # predicts a number from two ids"
        yield "  dim: 32"
        yield f"  user: {quote_yaml_name(user)}"
        yield f"  item: {quote_yaml_name(item)}"
    rare = [each for each in ids if each.once_share > _RARE_SHARE]
    if rare:
        yield ""
        names = ", ".join(each.name for each in rare)
        yield f"# Many ids of {names} occur once. A filter can keep such rows out of tables:"
        yield "# tables:"
        yield "#   admission: {kind: frequency, k: 2}"
    yield ""
    yield "optimizer:"
    yield "  sparse: {name: adagrad, lr: 0.03}"
    yield "  dense: {name: adam, lr: 0.001}"
    yield ""
    yield "training:"
    yield "  epochs: 1" if label.is_binary else "  epochs: 12"
    yield ""
    yield "snapshots:"
    yield "  url: run                # the trained model, for sparring evaluate, predict, recommend"
