"""``sparring init``: writes a configuration for files of examples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np
import pyarrow
import typer
from pyarrow import types

from sparring import closest_name
from sparring.errors import ConfigError, DataError
from sparring_train.cli.init_ranking import (
    RankingKind,
    has_user_and_item,
    ranked_columns,
    ranking_lines,
)
from sparring_train.cli.init_text import id_columns, yaml_name
from sparring_train.config.loader import parse_config
from sparring_train.data.table.look import ColumnLook, Look, Role, look_at

__all__ = ["add_init"]

_ROLES: dict[str, Role] = {
    "categorical": "categorical",
    "numeric": "numeric",
    "time": "time",
    "skip": "left out",
}
_RARE_SHARE = 0.1
"""Of values that occur once, from which on rare ids are worth keeping out."""


def add_init(application: typer.Typer) -> None:
    application.command("init")(init)


def init(
    path: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A CSV or Parquet file, a folder, a pattern or a URL."),
    ],
    roles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ROLE=COLUMN",
            help="What columns are, where the guess is wrong: label=clicked, weight=w, time=at, "
            "categorical=a,b, numeric=c, skip=d.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        RankingKind | None,
        typer.Option(
            help="Rank items for users: two_towers, or sequence, by the items before. Without it, files "
            "without a label whose columns are called as users and items get one of them.",
        ),
    ] = None,
) -> None:
    """Look at files of examples, and print a configuration that trains on them."""
    given = _given(roles or ())
    look = look_at(path)
    text, unsure = _configuration(path, look, given, model)
    # What is printed trains: what it says is checked as `sparring train` checks it.
    parse_config(text, source="the configuration of sparring init")
    typer.echo(text, nl=False)
    for each in unsure:
        typer.echo(f"unsure: {each}", err=True)


def _given(words: Sequence[str]) -> dict[str, list[str]]:
    known = ("label", "weight", *_ROLES)
    given: dict[str, list[str]] = {}
    for word in words:
        role, _, columns = word.partition("=")
        if role not in known or not columns:
            meant = closest_name(role, known)
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(f"{word}: expected ROLE=COLUMN with one of {', '.join(known)}{hint}")
        given.setdefault(role, []).extend(columns.split(","))
    return given


def _configuration(
    path: str, look: Look, given: dict[str, list[str]], model: RankingKind | None
) -> tuple[str, list[str]]:
    """The text, and what is unsure about it."""
    by_name = {each.name: each for each in look.columns}
    for names in given.values():
        for name in names:
            if name not in by_name:
                meant = closest_name(name, by_name)
                hint = f"; did you mean {meant}?" if meant else f", found {', '.join(by_name)}"
                raise DataError(f"{path}: has no column {name!r}{hint}", path=path, column=name)
    for key, role in _ROLES.items():
        for name in given.get(key, ()):
            by_name[name].role, by_name[name].unsure = role, None
    unsure: list[str] = []
    label = _label(path, look, given, unsure)
    if label is None and model is None and not has_user_and_item(look.columns):
        raise DataError(
            f"{path}: found no column that is called as labels are; say label=COLUMN, one of "
            f"{', '.join(each.name for each in look.columns)}; or --model two_towers, where each row is "
            "something that a user did with an item",
            path=path,
        )
    weight = given.get("weight", [None])[0]
    columns = [each for each in look.columns if each.name not in (label, weight)]
    for role in ("numeric", "categorical"):
        for each in columns:
            if each.role == "time" and each.name in given.get(role, ()):
                each.role = _ROLES[role]
    look.choose_one_separator([each for each in columns if each.role == "categorical"])
    unsure += [f"{each.name}: {each.unsure}" for each in columns if each.unsure]
    if not any(each.role == "categorical" for each in columns):
        raise DataError(
            f"{path}: found no column of ids; say categorical=COLUMN, one of "
            f"{', '.join(each.name for each in columns)}",
            path=path,
        )
    if label is None or model is not None:
        found = ranked_columns(path, look, columns, label, model, unsure)
        used = {each.name for each in (found.user, found.item, *found.of_user, *found.of_item)}
        used |= set() if found.time is None else {found.time.name}
        left = [each.name for each in columns if each.name not in used]
        lines = [*_head(path, look, unsure), *ranking_lines(path, look, found, weight, left)]
        return "\n".join(lines) + "\n", unsure
    lines = [*_head(path, look, unsure), *_data(path, look, columns, label, weight)]
    lines += _model(look, columns, label, path)
    return "\n".join(lines) + "\n", unsure


def _label(path: str, look: Look, given: dict[str, list[str]], unsure: list[str]) -> str | None:
    label = given["label"][0] if "label" in given else look.likely_label()
    if label is None:
        return None
    if "label" not in given:
        unsure.append(f"{label}: taken for the label, by its name")
    kind = look.values[label].type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        found = look.values[label].unique().to_pylist()[:4]
        raise DataError(
            f"{path}: the label {label} is {kind} ({', '.join(map(repr, found))}, …), expected 0 and "
            "1, booleans, or numbers; write it as these",
            path=path,
            column=label,
        )
    return label


def _is_binary(look: Look, label: str) -> bool:
    values = look.values[label].drop_null().unique()
    return set(values.cast(pyarrow.float64()).to_pylist()) <= {0.0, 1.0}


def _head(path: str, look: Look, unsure: Sequence[str]) -> Iterator[str]:
    about = "" if look.is_exact else "about "
    yield f"# Written by `sparring init {path}`."
    yield f"# It looked at {look.num_sampled:,} of {about}{look.num_rows:,} rows."
    for each in unsure:
        yield f"# UNSURE: {each}"
    yield ""
    yield "seed: 1"


def _data(
    path: str, look: Look, columns: Sequence[ColumnLook], label: str, weight: str | None
) -> Iterator[str]:
    ids = [each for each in columns if each.role == "categorical"]
    numbers = [each for each in columns if each.role == "numeric"]
    times = [each for each in columns if each.role == "time"]
    yield ""
    yield "data:"
    yield "  kind: table"
    yield f"  path: {json.dumps(path)}"
    yield f"  label: {yaml_name(label)}"
    yield from id_columns(ids)
    if not _is_binary(look, label):
        names = ", ".join(map(yaml_name, _user_and_item(ids, label, path)))
        yield f"  required: [{names}]  # a row without an id of these is refused"
    if numbers:
        yield f"  numeric: [{', '.join(yaml_name(each.name) for each in numbers)}]"
        skewed = [yaml_name(each.name) for each in numbers if each.is_skewed]
        if skewed:
            yield f"  log1p: [{', '.join(skewed)}]       # they span powers of ten"
    if weight is not None:
        yield f"  weight: {yaml_name(weight)}"
    left = [each.name for each in columns if each.role == "left out"]
    left += [each.name for each in times[1:]]
    if left:
        yield f"  # left out: {', '.join(left)}"
    if times:
        yield f"  time: {yaml_name(times[0].name)}"
        yield "  split: {time: 0.1}      # the latest tenth is the test"
    else:
        yield "  split: {fraction: 0.1}  # a tenth, drawn by chance, is the test"
    size = 2 ** int(np.clip(np.log2(max(look.num_rows, 1) / 200), 4, 12))
    yield f"  batch_size: {size}"


def _model(look: Look, columns: Sequence[ColumnLook], label: str, path: str) -> Iterator[str]:
    ids = [each for each in columns if each.role == "categorical"]
    yield ""
    yield "model:"
    if _is_binary(look, label):
        yield "  kind: dlrm              # a probability of 1, from ids and numbers"
        yield "  embedding_dim: 16"
        yield "  bottom_mlp: [64, 32]"
        yield "  top_mlp: [64, 32]"
    else:
        user, item = _user_and_item(ids, label, path)
        yield "  kind: matrix_factorization  # a number, from two ids"
        yield "  dim: 32"
        yield f"  user: {yaml_name(user)}"
        yield f"  item: {yaml_name(item)}"
    rare = [each for each in ids if each.once_share > _RARE_SHARE]
    if rare:
        yield ""
        names = ", ".join(each.name for each in rare)
        yield f"# Many ids of {names} occur once. Such rows can be kept out of tables:"
        yield "# tables:"
        yield "#   admission: {kind: frequency, k: 2}"
    yield ""
    yield "optimizer:"
    yield "  sparse: {name: adagrad, lr: 0.03}"
    yield "  dense: {name: adam, lr: 0.001}"
    yield ""
    yield "training:"
    yield "  epochs: 1" if _is_binary(look, label) else "  epochs: 12"
    yield ""
    yield "snapshots:"
    yield "  url: run                # the trained model, for sparring evaluate, predict, recommend"


def _user_and_item(ids: Sequence[ColumnLook], label: str, path: str) -> tuple[str, str]:
    """The two columns of a matrix factorisation."""
    single = [each.name for each in ids if not each.is_list]
    if len(single) < 2:
        raise DataError(
            f"{path}: the label {label} is a number, for which a matrix factorisation needs two "
            "columns of ids, of users and of items; say categorical=USER,ITEM",
            path=path,
            column=label,
        )
    user = next((name for name in single if "user" in name.lower()), single[0])
    return user, next(name for name in single if name != user)
