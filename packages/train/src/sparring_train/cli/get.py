"""``sparring get``: shows the row of one key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sparring import PluginManager, Snapshot, latest_snapshot, open_snapshot
from sparring.contracts import TableConfig, read_embeddings, read_state
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_cli import (
    ExitCode,
    JsonOption,
    add_command,
    get_command_context,
    print_json,
    read_embedding_parts,
)
from sparring_train.cli.train import OverridesArgument
from sparring_train.config.reading.loader import load_config
from sparring_train.run.history import find_version
from sparring_train.run.row_changes import find_row
from sparring_train.run.snapshot_rows import parse_candidate_keys
from sparring_train.run.storages import format_storage, open_run_storages

__all__ = ["add_get", "open_newest_snapshot"]


def add_get(application: typer.Typer) -> None:
    add_command(
        application,
        "get",
        get,
        examples=[
            "sparring get runs/films item 7",
            "sparring get runs/films item 7 --at 2026-11-27T18:30",
            "sparring get run.yaml user ann --ranks 2 --json",
        ],
        accepts_negative_numbers=True,
    )


def get(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT",
            help="A snapshot, a folder of snapshots (the newest is used), or the YAML file of a "
            "run whose storage is persistent.",
        ),
    ],
    table: Annotated[str, typer.Argument(help="The table's name.")],
    key: Annotated[str, typer.Argument(help="The id: a number, or a string as in the data.")],
    overrides: OverridesArgument = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Number of ranks of the run. Needed if the run saved no snapshot.", min=1
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|TIME",
            help="Read the newest kept version at or before this step or time: ISO 8601 (UTC without an "
            "offset), or @ and seconds since 1970.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the embedding and the optimizer state of one key. The exit code is 3 if it has no row."""
    manager = get_command_context(context).plugin_manager
    is_run = place.endswith((".yaml", ".yml"))
    if is_run and at is not None:
        raise InvalidArgumentError(
            f"get: found --at {at} with the configuration {place}, but a storage has no versions; give "
            "the folder of the run's snapshots"
        )
    if at is not None:
        snapshot: Snapshot | None = find_version(place, at)
    else:
        snapshot = None if is_run else open_newest_snapshot(place)
    meant = parse_candidate_keys(key)
    for candidate in meant:
        if snapshot is None:
            found = _find_in_storages(place, overrides or [], table, candidate, ranks, manager)
        else:
            found = _find_in_snapshot(snapshot, table, candidate)
        if found["found"]:
            break
    else:
        candidate = meant[0]
    if as_json:
        print_json({"table": table, "key": candidate, **found})
    else:
        _print(table, candidate, found)
    if not found["found"]:
        raise typer.Exit(ExitCode.NOT_FOUND)


def open_newest_snapshot(url: str) -> Snapshot:
    """Opens a snapshot, or the newest one in a folder.

    Raises:
        SnapshotError: there is none, or it cannot be read.
    """
    try:
        return open_snapshot(url)
    except SnapshotError:
        newest = latest_snapshot(url)
        if newest is None:
            raise
        return newest


def _find_in_snapshot(snapshot: Snapshot, table: str, key: int) -> dict[str, Any]:
    snapshot.check_table(table)
    where = {"found": False, "place": snapshot.url, "step": snapshot.step}
    described = snapshot.tables[table]
    found = find_row(snapshot, table, key)
    if found is None:
        return where
    score = {"score": int(found.scores[0])} if described.has_scores else {}
    parts = read_embedding_parts(snapshot, table, described.dim)
    return where | _row(described.config, found.rows, parts) | score


def _find_in_storages(
    config: str,
    overrides: list[str],
    table: str,
    key: int,
    ranks: int | None,
    manager: PluginManager,
) -> dict[str, Any]:
    run = load_config(config, overrides, plugin_manager=manager)
    places = []
    for place, storage in open_run_storages(run, table, manager, ranks=ranks):
        said = run.model.embedding_parts or {"embedding": [0, storage.table.dim]}
        parts = {name: slice(*each) for name, each in said.items()}
        places.append(format_storage(place))
        rows = storage.find(np.array([key], np.int64))
        if rows.found[0]:
            return {"found": True, "place": places[-1]} | _row(storage.table, rows.rows, parts)
    return {"found": False, "place": ", ".join(places) or f"no rows of {run.storage.backend}"}


def _row(table: TableConfig, row: npt.NDArray[Any], parts: Mapping[str, slice]) -> dict[str, Any]:
    embedding = read_embeddings(table, row)[0]
    return {
        "found": True,
        "dtype": table.dtype,
        "parts": {name: embedding[where].tolist() for name, where in parts.items()},
        "state_method": table.state_method,
        "state": read_state(table, row)[0].tolist(),
    }


def _print(table: str, key: int, found: dict[str, Any]) -> None:
    step = f", step {found['step']:,}" if "step" in found else ""
    typer.echo(f"table {table}, key {key}, in {found['place']}{step}")
    if not found["found"]:
        typer.echo("no row: it reads as its initial value")
        return
    shown = dict(found["parts"])
    if found["state"]:
        shown[f"state of {found['state_method'] or 'the optimizer'}"] = found["state"]
    for name, values in shown.items():
        typer.echo(f"{name}: {' '.join(f'{value:.6g}' for value in values)}")
    if "score" in found:
        typer.echo(f"score: {found['score']}")
