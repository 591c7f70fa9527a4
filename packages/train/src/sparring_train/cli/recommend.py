"""``sparring recommend``: the best items for a user, according to a saved model."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
import pyarrow
import typer

from sparring import Snapshot
from sparring.errors import InvalidArgumentError
from sparring_cli import (
    JsonOption,
    add_command,
    get_command_context,
    print_json,
    print_warning,
)
from sparring_train.cli.evaluate import SnapshotArgument
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.cli.neighbors import Best, print_best
from sparring_train.cli.train import OverridesArgument
from sparring_train.config.run import RunConfig
from sparring_train.data.table.hexadecimal import parse_hexadecimal
from sparring_train.recommend.all_users import RecommendationOptions, open_recommendations
from sparring_train.recommend.item_index import IndexOption, chooses_faiss
from sparring_train.recommend.names_of_ids import names_of_ids
from sparring_train.recommend.part_commands import PartsOption, write_parts
from sparring_train.recommend.recommendations import (
    Given,
    RecommendationResult,
    Sides,
    compute_recommendations,
    find_sides,
    read_seen_items,
)
from sparring_train.run.saved_run import open_run
from sparring_train.run.snapshot_rows import find_embedding, parse_candidate_keys, read_keys

__all__ = ["add_recommend"]


def add_recommend(application: typer.Typer) -> None:
    add_command(
        application,
        "recommend",
        recommend,
        examples=[
            "sparring recommend runs/films --user 42",
            "sparring recommend runs/films --user ann -k 5 --new --json",
            "sparring recommend runs/films --all-users --output best -k 100 --new",
            "sparring recommend runs/films --users users.parquet --output s3://bucket/best --parts 0/16",
        ],
    )


def recommend(  # noqa: PLR0913, PLR0917 - typer makes the options of these
    context: typer.Context,
    snapshot: SnapshotArgument,
    overrides: OverridesArgument = None,
    user: Annotated[
        str | None, typer.Option(help="The user: a number, or a string as in the data.")
    ] = None,
    k: Best = 10,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=VALUE",
            help="A further feature or number; separate several ids of a list by commas. Others "
            "are read from the training data, or are empty or 0.",
        ),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option(
            help="The feature that contains items, if it cannot be derived from the model or names."
        ),
    ] = None,
    user_feature: Annotated[
        str | None,
        typer.Option(
            help="The feature that contains users, if it cannot be derived from the model or names."
        ),
    ] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Exclude the user's items in the training data.")
    ] = False,
    index: IndexOption = "auto",
    all_users: Annotated[
        bool,
        typer.Option(
            "--all-users", help="Write the best items of all users of the run to --output."
        ),
    ] = False,
    users: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the best items of the users in Parquet files, one row per user with the features "
            "that the model needs.",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder or URL for Parquet parts. The same command resumes at the first missing part.",
        ),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Parquet files of users and items to exclude, with --output."
        ),
    ] = None,
    items: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Parquet files of the items that may be recommended, with --output.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="Condition on a column of --items: COLUMN=VALUE, or !=, <, <=, > or >=. Repeatable.",
        ),
    ] = None,
    factory: Annotated[
        str | None,
        typer.Option(
            help="Index of Faiss for --index faiss with --output: Flat, the default, compares all items, "
            "HNSW32 a part."
        ),
    ] = None,
    part_users: Annotated[
        int, typer.Option(help="Number of users per part of --output.", min=1)
    ] = 16_384,
    parts: PartsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the best items for a user. All items that have a row are scored.

    If the model has further features, the training data are read: items and the user get the values of
    their last row. An id without a row reads as its initial value.

    With --all-users or --users, the results are written to --output in parts with a manifest.
    """
    found = open_newest_snapshot(snapshot)
    manager = get_command_context(context).plugin_manager
    is_single = not all_users and users is None
    if is_single == (output is not None) or (all_users and users is not None):
        raise InvalidArgumentError(
            "expected --output together with either --all-users or --users FILE, or none of them; fix "
            "the options"
        )
    if factory is not None and (output is None or index != "faiss"):
        raise InvalidArgumentError(
            f"--factory: found {factory} with --index {index}, which does not use it; add --index faiss "
            "and --output"
        )
    if output is not None:
        if user is not None or given:
            raise InvalidArgumentError(
                f"{'--user' if user is not None else '--with'} is an option for one user, but --output "
                "is for all users; remove it"
            )
        options = RecommendationOptions(
            users=users,
            k=k,
            item=item,
            user=user_feature,
            exclude_trained=new,
            exclude=exclude,
            items=items,
            where=tuple(where or ()),
            factory=(factory or "Flat") if index == "faiss" and chooses_faiss(index) else None,
            part_rows=part_users,
        )
        with open_recommendations(
            found, output, options, overrides=overrides or [], plugin_manager=manager
        ) as job:
            recall = None if options.factory is None else job.measure_recall()
            write_parts(job, job.output, "users", parts, as_json=as_json, recall=recall)
        return
    if exclude is not None or items is not None or where or parts is not None:
        raise InvalidArgumentError(
            "--exclude, --items, --where and --parts are options for all users; add --all-users and "
            "--output"
        )
    with open_run(found, overrides or [], manager, in_order=True) as (config, model):
        sides = find_sides(config, item, user_feature, needs_user=user is not None)
        asked, without_row = _given(found, config, sides, user, given or [])
        keys = read_keys(found, _table(config, sides.item))
        if new:
            if sides.user is None or user is None:
                raise InvalidArgumentError(
                    "--new excludes the items of a user, but no user was given; add --user"
                )
            keys = np.setdiff1d(keys, read_seen_items(model, sides, int(asked.ids[sides.user][0])))
        best = compute_recommendations(model, config, sides, asked, keys, k, index)
        names = names_of_ids(found, config, _table(config, sides.item), best.keys)
    scores = best.scores.tolist()
    if as_json:
        listed = zip(names, scores, strict=True)
        items_told = [{"item": name, "score": score} for name, score in listed]
        remarks = {
            "without_row": without_row,
            "left_empty": list(best.empty),
            "items_left_out": best.num_unknown,
            "by_popularity": best.is_by_popularity,
        }
        shown = {name: each for name, each in remarks.items() if each}
        told = {"snapshot": found.url, "user": user, "index": best.index, **shown}
        print_json({**told, "items": items_told})
    else:
        _warn(best, without_row, user)
        title = "training rows" if best.is_by_popularity else "score"
        print_best(sides.item, names, title, scores)


def _warn(best: RecommendationResult, without_row: list[str], user: str | None) -> None:
    for each in without_row:
        print_warning(f"{each} has no row; its initial value is used")
    if best.is_by_popularity:
        print_warning(
            f"user {user!r} has no training row, so the items with the most training rows are listed. "
            "Give earlier items by --with"
        )
    if best.empty:
        print_warning(
            f"left empty: {', '.join(best.empty)}, because the training data do not determine them for "
            f"this user or the items. Give --with {best.empty[0]}=VALUE"
        )
    if best.num_unknown:
        print_warning(
            f"{best.num_unknown:,} items are excluded: they have a row, but no training row contains "
            "their features"
        )


def _given(
    snapshot: Snapshot, config: RunConfig, sides: Sides, user: str | None, given: list[str]
) -> tuple[Given, list[str]]:
    """Returns the ids and numbers that were given, and a description of each id without a row."""
    schema = config.data.columns
    texts: dict[str, list[str]] = {}
    numbers: dict[str, float] = {}
    if user is not None and sides.user is not None:
        texts[sides.user] = [user]
    for each in given:
        name, equals, value = each.partition("=")
        if equals and name in schema.numbers:
            number = _number(each, value)
            number = max(number, getattr(config.data, "minimum", {}).get(name, number))
            is_log = name in getattr(config.data, "log1p", ())
            numbers[name] = math.copysign(math.log1p(abs(number)), number) if is_log else number
        elif equals and schema.feature(name) is not None:
            missing = ("", *getattr(config.data, "missing_values", ()))
            texts[name] = [part for part in value.split(",") if part not in missing]
        else:
            known = ", ".join([*(feature.name for feature in schema.features), *schema.numbers])
            raise InvalidArgumentError(
                f"--with: found {each!r}, expected NAME=VALUE with one of {known}; fix the name"
            )
    ids, without_row = {}, []
    for name, values in texts.items():
        keys = []
        for text in values:
            key, has_row = _key(snapshot, config, name, text)
            keys.append(key)
            if not has_row:
                without_row.append(f"{name} {text!r}")
        ids[name] = np.array(keys, np.int64)
    return Given(ids, numbers), without_row


def _key(snapshot: Snapshot, config: RunConfig, feature: str, text: str) -> tuple[int, bool]:
    """Returns the key of an id, and whether the key has a row. The second result is True if the
    model does not use the table."""
    table = _table(config, feature)
    meant = parse_candidate_keys(text)
    kind = getattr(config.data, "types", {}).get(feature)
    if kind == "hexadecimal":
        try:
            meant = parse_hexadecimal(pyarrow.array([text])).tolist()
        except ValueError:
            raise InvalidArgumentError(
                f"{feature}: found {text!r}, expected 1 to 16 hexadecimal digits, because of data.types "
                "in the run of the model"
            ) from None
    elif kind is not None:
        # The hash of the text comes last.
        meant = meant[-1:] if kind == "string" else meant[:-1]
        if not meant:
            raise InvalidArgumentError(
                f"{feature}: found {text!r}, but its ids are whole numbers of 64 bits in the training "
                "data; give such a number"
            )
    if table not in snapshot.tables:
        return meant[0], True
    with_row = [key for key in meant if find_embedding(snapshot, table, key) is not None]
    return (with_row or meant)[0], bool(with_row)


def _number(given: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidArgumentError(
            f"--with {given}: found {text!r}, expected a number; correct the value"
        ) from None


def _table(config: RunConfig, feature: str) -> str:
    found = config.data.columns.feature(feature)
    assert found is not None
    return found.table_name
