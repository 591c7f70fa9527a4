"""``sparring erase``: removes ids from everything that a run has left, and writes a receipt."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from sparring import (
    PluginManager,
    TieredStorage,
    __version__,
    context_of,
    erase_from_snapshots,
    found_table,
    latest_snapshot,
    state_without_keys,
)
from sparring.contracts import Storage, SupportsPurge
from sparring.errors import InvalidArgumentError
from sparring_train.cli.train import OverridesArgument
from sparring_train.config.loader import load_config
from sparring_train.config.run import RunConfig
from sparring_train.run_storages import open_run_storages, place_name

__all__ = ["add_erase"]

_BLOOM = 3
"""Kind of a Bloom filter in docs/format/admission.md."""


def add_erase(application: typer.Typer) -> None:
    application.command("erase")(erase)


def erase(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    keys: Annotated[
        Path,
        typer.Option("--keys", help="A file of ids: whole numbers, one a line; # begins a remark."),
    ],
    overrides: OverridesArgument = None,
    everywhere: Annotated[
        str | None,
        typer.Option(
            "--everywhere",
            metavar="CONFIG",
            help="The YAML file of a run that is not running: its snapshots and its storage.",
        ),
    ] = None,
    snapshots: Annotated[
        list[str] | None,
        typer.Option("--snapshots", metavar="FOLDER", help="A further folder of snapshots."),
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="How many ranks the run had, if it left no snapshot.", min=1)
    ] = None,
    receipt: Annotated[
        Path | None, typer.Option("--receipt", metavar="FILE", help="Where the receipt goes.")
    ] = None,
) -> None:
    """Remove ids from storages, from admission counters and from all snapshots.

    Stopped on the way, everything can be loaded still: run it again.
    """
    wanted = _keys_in(keys)
    manager = context_of(context).plugin_manager
    run = None
    if everywhere is not None:
        run = load_config(everywhere, overrides or [], plugin_manager=manager)
    folders = list(snapshots or [])
    if run is not None and run.snapshots.url is not None:
        folders.append(run.snapshots.url)
    if run is None and not folders:
        raise InvalidArgumentError(
            "erase: name where from: --everywhere run.yaml, or --snapshots FOLDER"
        )
    for folder in snapshots or []:
        if latest_snapshot(folder) is None:
            raise InvalidArgumentError(f"erase: there is no snapshot in {folder}")
    began = datetime.now(timezone.utc)
    target = receipt or Path(f"erased-{table}-{began:%Y%m%dT%H%M%SZ}.json")
    if target.exists():
        raise InvalidArgumentError(f"erase: {target} exists already; name another --receipt")
    # Storages first: their places are known by the newest snapshot.
    storages, traces = _from_storages(run, table, wanted, ranks, manager)
    rewritten = [_from_folder(folder, table, wanted, traces) for folder in folders]
    report = {
        "table": table,
        "num_keys": len(wanted),
        "time": began.isoformat(timespec="seconds"),
        "sparring": __version__,
        "storages": storages,
        "snapshots": rewritten,
        "traces": [*traces, *_traces_of(run)],
    }
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for each in storages:
        typer.echo(f"{each['place']}: {each['num_rows']:,} rows removed")
    for each in rewritten:
        typer.echo(
            f"{each['folder']}: {each['num_rows']:,} rows left out of {len(each['replaced'])} "
            f"snapshots, {len(each['clean'])} had none"
        )
    typer.echo(f"receipt: {target}")


def _keys_in(path: Path) -> npt.NDArray[np.int64]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"erase: {path} cannot be read: {error}") from error
    found = set()
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            found.add(np.int64(int(text)))
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"erase: {path}:{number}: {text!r} is no id, a whole number of 64 bits"
            ) from None
    if not found:
        raise InvalidArgumentError(f"erase: {path} has no ids")
    return np.array(sorted(found), np.int64)


def _from_storages(
    run: RunConfig | None,
    table: str,
    keys: npt.NDArray[np.int64],
    ranks: int | None,
    manager: PluginManager,
) -> tuple[list[dict[str, Any]], list[str]]:
    done: list[dict[str, Any]] = []
    traces: list[str] = []
    if run is None:
        return done, traces
    for place, storage in open_run_storages(run, table, manager, ranks=ranks):
        num_rows = storage.erase(keys)
        storage.flush()
        tiers = storage.tiers if isinstance(storage, TieredStorage) else (storage,)
        for each in tiers:
            traces += _purged(each)
        declared = storage.table
        storage.close()
        # Opened again, a database rewrites its list of files.
        found_table(place.backend, declared, manager, place.options)
        done.append({"place": place_name(place), "num_rows": num_rows})
    return done, traces


def _purged(storage: Storage) -> list[str]:
    if isinstance(storage, SupportsPurge):
        storage.purge()
        return []
    if not storage.capabilities.persistent:
        return []
    return [
        f"{type(storage).__name__}: the rows are gone for all readers; files of the server or "
        "database behind it, as logs and dumps of Redis, may have their bytes until it rewrites them"
    ]


def _from_folder(
    folder: str, table: str, keys: npt.NDArray[np.int64], traces: list[str]
) -> dict[str, Any]:
    found = erase_from_snapshots(
        folder, table, keys, lambda name, state: state_without_keys(name, state, table, keys)
    )
    newest = latest_snapshot(folder)
    if newest is not None and "admission" in newest.state_names(0):
        saved = newest.state("admission").arrays.get(table)
        if saved is not None and int.from_bytes(saved[12:16].tobytes(), "little") == _BLOOM:
            traces.append(
                f"{folder}: the counters of the Bloom filter that admits ids of table {table!r} are "
                "shared by many ids; no id can be read from them, but one may be admitted a step early"
            )
    return {
        "folder": folder,
        "replaced": found.replaced,
        "clean": found.clean,
        "num_rows": found.num_rows,
        "num_dead_attempts": found.num_dead_attempts,
    }


def _traces_of(run: RunConfig | None) -> list[str]:
    traces = [
        "ordinary weights, and rows of other ids, were trained together with these ids; no id can be "
        "read from them",
        "copies made by others are not known here: exports, backups, older versions that an object "
        "store or a file system keeps",
    ]
    if run is not None and run.report.path is not None:
        traces.append(f"{run.report.path}: the report counts how often ids came, by sketches")
    return traces
