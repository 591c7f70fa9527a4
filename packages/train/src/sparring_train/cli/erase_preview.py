"""What ``sparring erase`` would remove, the question before it, and the report after it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import typer

from sparring import PluginManager, list_snapshots
from sparring.adapter import find_in_snapshots, state_without_keys
from sparring.errors import InvalidArgumentError
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.loop.step_items import COUNTS, counts_without
from sparring_train.run.storages import format_storage, open_run_storages

__all__ = [
    "confirm_erasure",
    "describe_remains",
    "make_state_filter",
    "preview_erasure",
    "print_erasure",
]

_FIND = "search files and folders with --search, and delete those that contain ids"


def confirm_erasure(num_ids: int, table: str, places: list[str]) -> None:
    """Asks whether to erase.

    Raises:
        InvalidArgumentError: Standard input is not a terminal.
        typer.Abort: The answer is no.
    """
    if not sys.stdin.isatty():
        raise InvalidArgumentError(
            "erase: found no terminal to confirm the erasure; add --yes, or --dry-run to see what would "
            "be erased"
        )
    typer.confirm(
        f"Erase {num_ids:,} ids of table {table!r} from {', '.join(places)}?", abort=True, err=True
    )


def make_state_filter(
    known: RunConfig | None, table: str, keys: npt.NDArray[np.int64]
) -> Callable[[str, Any], Any]:
    """Returns a function that removes keys from the state of a snapshot. It takes the name and the state,
    and returns the state without the keys, or None if it contains none of them.

    Args:
        known: configuration of the run that wrote the snapshots; None if it is unknown.
        table: table of the keys.
        keys: ``(n,)``, the keys to remove.
    """
    ranking = None if known is None else known.model.ranking(known.data.columns)
    item = None
    if known is not None and ranking is not None:
        item = known.data.columns.feature(ranking.item[0])
    counts_items = item is not None and item.table_name == table

    def state_without(name: str, state: Any) -> Any:
        if name == COUNTS and counts_items:
            return counts_without(state, keys)
        return state_without_keys(name, state, table, keys)

    return state_without


def preview_erasure(
    run: RunConfig | None,
    table: str,
    keys: npt.NDArray[np.int64],
    ranks: int | None,
    manager: PluginManager,
    folders: list[str],
    features: list[str] | None,
    state_without: Callable[[str, Any], Any],
) -> dict[str, Any]:
    """Returns what an erasure would remove from storages, snapshots and strings. Changes nothing."""
    # Imported here, because it imports pyarrow.
    from sparring_train.data.table.strings import erase_strings

    storages = [
        {"place": format_storage(place), "num_rows": int(storage.find(keys).found.sum())}
        for place, storage in (
            () if run is None else open_run_storages(run, table, manager, ranks=ranks)
        )
    ]
    snapshots, strings = [], []
    for folder in folders:
        found = find_in_snapshots(folder, table, keys, state_without)
        clean = [each for each in list_snapshots(folder) if each not in found.urls]
        snapshots.append(
            {"folder": folder, "replaced": found.urls, "clean": clean, "num_rows": found.num_rows}
        )
        entries = erase_strings(folder, keys, features, is_dry_run=True)
        strings.append(
            {
                "folder": entries.folder,
                "num_strings": entries.num_strings,
                "num_files": entries.num_files,
            }
        )
    return {"storages": storages, "snapshots": snapshots, "strings": strings}


def print_erasure(report: dict[str, Any], done: str) -> None:
    """Prints a report of an erasure, or with `done` ``to remove``, of a dry run."""
    for each in report["storages"]:
        typer.echo(f"{each['place']}: {each['num_rows']:,} rows {done}")
    for each in report["snapshots"]:
        typer.echo(
            f"{each['folder']}: {each['num_rows']:,} rows {done} from {len(each['replaced'])} "
            f"snapshots, {len(each['clean'])} contained none"
        )
    for each in report["strings"]:
        typer.echo(f"{each['folder']}: {each['num_strings']:,} strings {done}")
    for each in report["files"]:
        if each["num_ids"]:
            typer.echo(f"{each['path']}: still contains {each['num_ids']:,} of the ids; delete it")
        if each["problem"]:
            typer.echo(f"{each['path']}: could not be decoded ({each['problem']}); inspect it")


def describe_remains(run: RunConfig | None) -> dict[str, str]:
    """Returns the locations that were not searched, and how to remove ids from each."""
    data = "the training data"
    if run is not None:
        data = getattr(run.data, "path", getattr(run.data, "url", run.data.kind))
        join = run.data.join if isinstance(run.data, StreamData) else None
        if join is not None:
            data = ", ".join([data, *(each.url for each in join.actions.values())])
    notes = run is None or run.change_notes.is_on
    listed = {
        f"training data ({data})": "remove the rows, or the next training learns them again",
        "serving snapshots": "publish again with `sparring publish`; older versions, and the lists of "
        "removed ids in deltas, stay until they are deleted: `--keep` of `sparring publish` limits them",
        "caches of servers and clients": "they follow the next published version or change notes; "
        "restart them to be sure",
        "push logs of servers that learn (`parameters.push_log`)": "save the service before you stop "
        "its servers and erase, because a save empties the logs; delete its files that end with .unused",
        "exported vectors and rows (`sparring export`, outputs of `predict` and `recommend`)": _FIND,
        "logs of requests (`server.log`)": "search their folders with --search, and delete the files "
        "that contain ids; `server.log.max_bytes` limits how long files are kept",
        "logs on standard error, which quote values of bad rows": _FIND,
    }
    if run is None:
        listed["report, metrics and traces of the run"] = (
            "give its configuration with --everywhere, or the files with --search"
        )
    if notes:
        listed["change notes"] = (
            "notes contain ids, without strings, until `change_notes.keep` newer ones are published"
        )
    return listed
