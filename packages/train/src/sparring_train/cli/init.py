"""``sparring init``: writes a configuration for files of examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from sparring.adapter import find_closest_name
from sparring.errors import DataError
from sparring_cli import add_command, print_document, print_note
from sparring_train.cli.init_label import ChosenLabel, choose_label
from sparring_train.cli.init_ranking import (
    RankingKind,
    choose_ranked_columns,
    has_user_and_item,
    ranking_lines,
)
from sparring_train.cli.init_text import DICTIONARY_LINE, bad_row_lines, id_columns, label_lines
from sparring_train.cli.init_words import ROLES, Words, apply_keys, parse_words, quote_yaml_name
from sparring_train.config.reading.loader import parse_config
from sparring_train.data.table.sample import ReadingOptions
from sparring_train.data.table.summary import ColumnSummary, TableSummary, summarize_table
from sparring_train.recommend.column_names import ITEMS, USERS, find_first_named

__all__ = ["add_init", "suggest_configuration"]

_RARE_SHARE = 0.1
"""Minimum share of values that occur once for which an admission filter is suggested."""


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
        typer.Argument(metavar="FILE", help="A CSV or Parquet file, a folder, a pattern or a URL."),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE=COLUMN | KEY=VALUE",
            help="Roles of columns, if the guess is wrong: label=clicked, weight=w, time=at, "
            "categorical=a,b, numeric=c, skip=d. Keys of the configuration: a key of the section "
            "data, such as bad_rows=skip, or a key with its section, such as training.epochs=3.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        RankingKind | None,
        typer.Option(
            help="Model that ranks items for users: two_towers, or sequence, which uses earlier items. "
            "Default: one of them if the files have no label, but columns of users and items.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write. Default: standard output."),
    ] = None,
) -> None:
    """Read the first rows of files, and print a configuration that trains on them."""
    text, notes = suggest_configuration(path, words or (), model)
    print_document(text, output)
    for each in notes:
        print_note(each)


def suggest_configuration(
    path: str, words: Sequence[str], model: RankingKind | None = None
) -> tuple[str, list[str]]:
    """Reads the first rows of files. Returns a configuration that trains on them, and notes for the user.

    Args:
        path: a file, a folder, a pattern or a URL.
        words: roles of columns and keys of the configuration; see `init`.
        model: model that ranks items; None chooses a model.

    Raises:
        ConfigError: an argument is invalid.
        DataError: the files cannot be read, or contain no columns to train on.
    """
    given = parse_words(words)
    summary = summarize_table(path, _options(given))
    lines, unsure = _configuration(path, summary, given, model)
    text = "\n".join(apply_keys(lines, given.keys)) + "\n"
    # Validates the text like `sparring train` does.
    parse_config(text, source="the configuration of sparring init")
    notes = [f"unsure: {each}" for each in unsure]
    if summary.num_bad:
        notes.append(f"bad rows: {summary.num_bad:,}; the first: {summary.first_bad}")
    return text, notes


def _options(given: Words) -> ReadingOptions:
    data = given.data
    assert data is not None
    return ReadingOptions(
        data.delimiter,
        data.decimal if given.has("decimal") else None,
        data.missing_values if given.has("missing_values") else None,
        data.separator,
    )


def _configuration(
    path: str, summary: TableSummary, given: Words, model: RankingKind | None
) -> tuple[list[str], list[str]]:
    """Returns the lines of the configuration, and remarks about uncertain guesses."""
    by_name = {each.name: each for each in summary.columns}
    for role, names in given.columns.items():
        for name in names:
            if name not in by_name:
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
            by_name[name].role, by_name[name].unsure = role, None
    unsure: list[str] = list(summary.sample.unsure)
    label = choose_label(path, summary, given, unsure, may_guess=model is None)
    if label is None and model is None and not has_user_and_item(summary.columns):
        usable = [each.name for each in summary.columns if each.name not in summary.sample.unusable]
        raise DataError(
            f"{path}: found no column with the name of a label; give label=COLUMN, one of "
            f"{', '.join(usable)}; or --model two_towers, where each row is "
            "something that a user did with an item",
            path=path,
        )
    weight = given.columns.get("weight", [None])[0]
    label_name = None if label is None else label.name
    columns = [each for each in summary.columns if each.name not in (label_name, weight)]
    for role in ("numeric", "categorical"):
        for each in columns:
            if each.role == "time" and each.name in given.columns.get(role, ()):
                each.role = ROLES[role]
    ids = [each for each in columns if each.role == "categorical"]
    summary.choose_one_separator(ids)
    summary.choose_types(ids)
    unsure += [f"{each.name}: {each.unsure}" for each in columns if each.unsure]
    if not ids:
        raise DataError(
            f"{path}: found no column of ids; give categorical=COLUMN, one of "
            f"{', '.join(each.name for each in columns)}",
            path=path,
        )
    if label is None or model is not None:
        found = choose_ranked_columns(path, summary, columns, label, model, unsure)
        used = {each.name for each in (found.user, found.item, *found.of_user, *found.of_item)}
        used |= set() if found.time is None else {found.time.name}
        left = [each.name for each in columns if each.name not in used]
        return [
            *_head(path, summary, unsure),
            *ranking_lines(path, summary, found, weight, left),
        ], unsure
    lines = [*_head(path, summary, unsure), *_data(path, summary, columns, label, weight)]
    return [*lines, *_model(columns, label, path)], unsure


def _head(path: str, summary: TableSummary, unsure: Sequence[str]) -> Iterator[str]:
    about = "" if summary.sample.is_exact else "about "
    yield f"# Written by `sparring init {path}`."
    yield f"# Based on {summary.num_sampled:,} of {about}{summary.num_rows:,} rows."
    for each in unsure:
        yield f"# UNSURE: {each}"
    yield ""
    yield "seed: 1"


def _data(
    path: str,
    summary: TableSummary,
    columns: Sequence[ColumnSummary],
    label: ChosenLabel,
    weight: str | None,
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
    required: tuple[str, ...] = ()
    if not label.is_binary:
        required = _user_and_item(ids, label.name, path)
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
        yield "  split: {time: 0.1}      # the latest tenth is the test"
    else:
        yield "  split: {fraction: 0.1}  # a random tenth is the test"
    used = [label.name, weight, *(each.name for each in (*numbers, *times[:1]))]
    must = [label.name, weight, *(each.name for each in times[:1]), *required]
    yield from bad_row_lines(summary, used, must)
    yield DICTIONARY_LINE
    size = 2 ** int(np.clip(np.log2(max(summary.num_rows, 1) / 200), 4, 12))
    yield f"  batch_size: {size}"


def _model(columns: Sequence[ColumnSummary], label: ChosenLabel, path: str) -> Iterator[str]:
    ids = [each for each in columns if each.role == "categorical"]
    yield ""
    yield "model:"
    if label.is_binary:
        yield "  kind: dlrm              # predicts a probability from ids and numbers"
        yield "  embedding_dim: 16"
        yield "  bottom_mlp: [64, 32]"
        yield "  top_mlp: [64, 32]"
    else:
        user, item = _user_and_item(ids, label.name, path)
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


def _user_and_item(ids: Sequence[ColumnSummary], label: str, path: str) -> tuple[str, str]:
    """Returns the user and item columns of a matrix factorization."""
    single = [each.name for each in ids if not each.is_list]
    if len(single) < 2:
        raise DataError(
            f"{path}: the label {label} is a number, for which a matrix factorization needs two "
            "columns of ids, users and items; give categorical=USER,ITEM",
            path=path,
            column=label,
        )
    item = find_first_named(single, ITEMS)
    user = find_first_named((name for name in single if name != item), USERS)
    user = user or next(name for name in single if name != item)
    return user, item or next(name for name in single if name != user)
