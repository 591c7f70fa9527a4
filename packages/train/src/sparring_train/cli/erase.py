"""``sparring erase``: removes ids from all data that a run has stored, and writes a receipt."""

from __future__ import annotations

import getpass
import glob
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import numpy.typing as npt
import typer

from sparring import PluginManager, __version__, latest_snapshot, list_snapshots
from sparring.adapter import erase_from_snapshots, found_table
from sparring.contracts import Storage, SupportsPurge
from sparring.errors import InvalidArgumentError, SnapshotNotFoundError
from sparring_cli import (
    JsonOption,
    add_command,
    get_command_context,
    print_json,
    print_warning,
)
from sparring_tiered import TieredStorage
from sparring_train.cli.erase_preview import (
    confirm_erasure,
    describe_remains,
    make_state_filter,
    preview_erasure,
    print_erasure,
)
from sparring_train.cli.erase_search import SearchedIds, search_files
from sparring_train.cli.train import OverridesArgument
from sparring_train.columns import Origin
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.join.state_files import FOLDER as OPEN_IMPRESSIONS
from sparring_train.data.stream.erased_keys import record_erased_keys
from sparring_train.run.same_run import ORIGINS, RUN
from sparring_train.run.saved_run import read_run_config
from sparring_train.run.snapshot_rows import parse_candidate_keys
from sparring_train.run.storages import format_storage, open_run_storages

__all__ = ["add_erase"]

_BLOOM = 3
"""Number that stands for a Bloom filter in docs/format/admission.md."""

_COMMENT = re.compile(r"(^|\s)#.*")
_TRACES = (
    "ordinary weights, and rows of other ids, were trained together with these ids; ids cannot be "
    "reconstructed from them",
    "copies that others made are unknown to this command: exports, backups, older versions that an "
    "object store or a file system keeps",
    "the report counts how often ids occurred, by sketches; ids cannot be reconstructed from them",
    "recorded cuts, excluded ranges and quarantined ranges of a stream contain offsets of events, but "
    "no ids",
)


def add_erase(application: typer.Typer) -> None:
    add_command(
        application,
        "erase",
        erase,
        examples=[
            "sparring erase user --keys ids.txt --everywhere run.yaml --dry-run",
            "sparring erase user --keys ids.txt --everywhere run.yaml --yes --output receipt.json",
            "sparring erase user --keys ids.txt --snapshots runs/films --yes --json",
        ],
    )


def erase(  # noqa: PLR0912, PLR0913, PLR0917 (each is an option of the command line)
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="The table's name.")],
    keys: Annotated[
        Path,
        typer.Option(
            "--keys",
            help="A file with one id per line: a whole number, or a string as in the data. A # "
            "at the start of a line or after a space starts a comment.",
        ),
    ],
    overrides: OverridesArgument = None,
    everywhere: Annotated[
        str | None,
        typer.Option(
            "--everywhere",
            metavar="CONFIG",
            help="The YAML file of a run that is not running; its snapshots and storage are searched.",
        ),
    ] = None,
    snapshots: Annotated[
        list[str] | None,
        typer.Option("--snapshots", metavar="FOLDER", help="A further folder of snapshots."),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            help="Number of ranks of the run. Needed if the run saved no snapshot.", min=1
        ),
    ] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="PATH",
            help="A further file or folder, such as logs, predictions or serving snapshots. Ids in it "
            "are reported; it is not changed.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Receipt to write. Default: a file in this folder, named after the table and the time.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print what would be erased, and change nothing."),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Erase without a question. Required if there is no terminal."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove ids from storages, admission counters, snapshots and the dictionary of strings.

    On a terminal, the command asks for confirmation. If it is interrupted, all data remain loadable;
    run it again.
    """
    listed = _read_ids(keys)
    manager = get_command_context(context).plugin_manager
    run = None
    if everywhere is not None:
        run = load_config(everywhere, overrides or [], plugin_manager=manager)
    folders = list(snapshots or [])
    if run is not None and run.snapshots.url is not None:
        folders.append(run.snapshots.url)
    if run is None and not folders:
        raise InvalidArgumentError(
            "erase: found nothing to erase from; give --everywhere run.yaml or --snapshots FOLDER"
        )
    for folder in snapshots or []:
        if latest_snapshot(folder) is None:
            raise SnapshotNotFoundError(
                f"erase: found no snapshot in {folder}; give the folder of a run's snapshots"
            )
    known = _read_run(run, folders, manager)
    features, origins = _list_features(known, folders, table)
    meant = _list_keys(listed, table, origins, keys)
    wanted = np.array(sorted({key for each in meant.values() for key in each}), np.int64)
    state_without = make_state_filter(known, table, wanted)
    if dry_run:
        found = preview_erasure(
            run, table, wanted, ranks, manager, folders, features, state_without
        )
        found["files"] = _find_files_with(listed, meant, known, folders, search or [])
        if as_json:
            print_json({"dry_run": True, "table": table, "num_keys": len(meant), **found})
        else:
            print_erasure(found, "to remove")
            typer.echo("nothing was changed, because of --dry-run")
        return
    began = datetime.now(timezone.utc)
    target = output or Path(f"erased-{table}-{began:%Y%m%dT%H%M%SZ}.json")
    if target.exists():
        raise InvalidArgumentError(f"erase: {target} already exists; choose another --output")
    if not yes:
        confirm_erasure(len(set(listed.values())), table, [*filter(None, [everywhere]), *folders])
    # Storages first, because the newest snapshot determines their locations.
    with _audit_log(table, len(set(listed.values())), target) as audit:
        erased: set[int] = set()
        storages, traces = _erase_from_storages(run, table, wanted, ranks, manager, erased)
        rewritten = [
            _erase_from_folder(folder, table, wanted, state_without, traces, erased)
            for folder in folders
        ]
        strings = [_erase_from_dictionary(folder, wanted, features, erased) for folder in folders]
        of_stream = _erase_from_replays(known, folders, table, wanted)
        files = _find_files_with(listed, meant, known, folders, search or [])
    unknown = [number for number, each in meant.items() if erased.isdisjoint(each)]
    report = {
        "table": table,
        "num_keys": len(set(listed.values())),
        "time": began.isoformat(timespec="seconds"),
        **audit,
        "sparring": __version__,
        "storages": storages,
        "snapshots": rewritten,
        "strings": strings,
        "lines_without_a_row": unknown,
        "files": files,
        "remains": [
            {"place": place, "remedy": remedy}
            for place, remedy in (describe_remains(run) | of_stream).items()
        ],
        "traces": [*traces, *_TRACES],
    }
    target.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json({**report, "receipt": str(target)})
    else:
        print_erasure(report, "removed")
        typer.echo(f"receipt: {target}; it lists what was not searched")
    if unknown:
        shown = ", ".join(map(str, unknown[:10])) + (", …" if len(unknown) > 10 else "")
        print_warning(
            f"{keys}: found no row and no string for {len(unknown):,} of {len(meant):,} lines "
            f"({shown}); compare their spelling with the data, including capital letters and accents"
        )


@contextmanager
def _audit_log(table: str, num_ids: int, receipt: Path) -> Iterator[dict[str, str]]:
    """Writes an audit line to standard error: who erased how many ids, and the outcome.

    Yields:
        The fields of the audit line, which the receipt also contains.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # The user has no name on this system.
        user = f"uid {os.getuid()}"
    who = {"user": user, "host": socket.gethostname(), "request_id": secrets.token_hex(8)}
    began, outcome = time.monotonic(), "failed"
    try:
        yield who
        outcome = "done"
    finally:
        seconds = time.monotonic() - began
        typer.echo(
            f"audit: erase of {num_ids:,} ids from table {table!r} by {user!r} on {who['host']}: "
            f"{outcome} after {seconds:.3f} s, request id {who['request_id']}, receipt {receipt}",
            err=True,
        )


def _read_ids(path: Path) -> dict[int, str]:
    """Returns the ids of a file by line number."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"erase: reading {path} failed: {error}; give a readable text file in UTF-8"
        ) from error
    found = {}
    for number, line in enumerate(lines, 1):
        text = _COMMENT.sub("", line).strip()
        if text:
            found[number] = text
    if not found:
        raise InvalidArgumentError(
            f"erase: found no ids in {path}, expected one per line, a number or a string; add them"
        )
    return found


def _read_run(
    run: RunConfig | None, folders: list[str], manager: PluginManager
) -> RunConfig | None:
    """Returns the given configuration, or the one in the newest snapshot, or None."""
    if run is not None:
        return run
    newest = [each for each in map(latest_snapshot, folders) if each is not None]
    saved = [each for each in newest if RUN in each.state_names(0)]
    return read_run_config(saved[0], [], manager) if saved else None


def _list_features(
    run: RunConfig | None, folders: list[str], table: str
) -> tuple[list[str] | None, set[Origin]]:
    """Returns the columns whose ids are keys of a table, and the sources of their ids.

    Columns are None and sources are empty if there is neither a configuration nor a saved run.
    """
    if run is None:
        return None, set()
    features = [each.name for each in run.data.columns.features if each.table_name == table]
    origins: set[Origin] = set()
    for snapshot in map(latest_snapshot, folders):
        if snapshot is not None and ORIGINS in snapshot.state_names(0):
            known = snapshot.state(ORIGINS).values
            origins |= {known[name] for name in features if name in known}
    return features, origins


def _list_keys(
    listed: dict[int, str], table: str, origins: set[Origin], path: Path
) -> dict[int, list[int]]:
    """Returns the keys of the listed ids, by line number.

    A whole number may have been a string in the data. Therefore its keys are the number and the
    hash of its digits, unless the ids of the table are known to be whole numbers. It is unlikely
    that another id has the key of this hash.
    """
    found: dict[int, list[int]] = {}
    for number, text in listed.items():
        meant = parse_candidate_keys(text)
        if origins == {"integer"}:
            # The hash of the text comes last.
            meant = meant[:-1]
            if not meant:
                raise InvalidArgumentError(
                    f"erase: {path}:{number}: found {text!r}, but ids of table {table!r} are whole "
                    "numbers of 64 bits; fix the line"
                )
        found[number] = meant
    return found


def _erase_from_storages(
    run: RunConfig | None,
    table: str,
    keys: npt.NDArray[np.int64],
    ranks: int | None,
    manager: PluginManager,
    erased: set[int],
) -> tuple[list[dict[str, Any]], list[str]]:
    """Removes keys from the storages of a run. Adds keys that had rows to `erased`."""
    done: list[dict[str, Any]] = []
    traces: list[str] = []
    if run is None:
        return done, traces
    for place, storage in open_run_storages(run, table, manager, ranks=ranks):
        erased |= set(keys[storage.find(keys).found].tolist())
        num_rows = storage.erase(keys)
        storage.flush()
        tiers = storage.tiers if isinstance(storage, TieredStorage) else (storage,)
        for each in tiers:
            traces += _purge(each)
        declared = storage.table
        storage.close()
        # A database rewrites its list of files when it is opened again.
        found_table(place.backend, declared, manager, place.options)
        done.append({"place": format_storage(place), "num_rows": num_rows})
    return done, traces


def _purge(storage: Storage) -> list[str]:
    if isinstance(storage, SupportsPurge):
        storage.purge()
        return []
    if not storage.capabilities.persistent:
        return []
    return [
        f"{type(storage).__name__}: readers no longer find the rows; files of the server or database, "
        "such as logs and dumps of Redis, may contain their bytes until it rewrites them"
    ]


def _erase_from_folder(
    folder: str,
    table: str,
    keys: npt.NDArray[np.int64],
    state_without: Callable[[str, Any], Any],
    traces: list[str],
    erased: set[int],
) -> dict[str, Any]:
    found = erase_from_snapshots(folder, table, keys, state_without)
    erased |= found.keys
    newest = latest_snapshot(folder)
    if newest is not None and "admission" in newest.state_names(0):
        saved = newest.state("admission").arrays.get(table)
        if saved is not None and int.from_bytes(saved[12:16].tobytes(), "little") == _BLOOM:
            traces.append(
                f"{folder}: the counters of the Bloom filter that admits ids of table {table!r} are "
                "shared by many ids; ids cannot be reconstructed, but one may be admitted a step early"
            )
    return {
        "folder": folder,
        "replaced": found.replaced,
        "clean": found.clean,
        "num_rows": found.num_rows,
        "num_dead_attempts": found.num_dead_attempts,
    }


def _erase_from_dictionary(
    folder: str, keys: npt.NDArray[np.int64], features: list[str] | None, erased: set[int]
) -> dict[str, Any]:
    # Imported here, because it imports pyarrow.
    from sparring_train.data.table.strings import erase_strings

    found = erase_strings(folder, keys, features)
    erased |= found.ids
    return {
        "folder": found.folder, "num_strings": found.num_strings, "num_files": found.num_files
    }  # fmt: skip


def _erase_from_replays(
    run: RunConfig | None, folders: list[str], table: str, keys: npt.NDArray[np.int64]
) -> dict[str, str]:
    """Adds the keys to those that replays of a stream leave out. Returns what remains."""
    remains = {}
    if run is not None and (letters := _dead_letters(run)):
        remains[f"dead letters ({letters})"] = (
            "delete them, because the search does not find ids in payloads that are encoded"
        )
    try:
        recorded = [record_erased_keys(folder, table, keys.tolist()) for folder in folders]
        impressions = [each for each in map(_open_impressions, folders) if each is not None]
    except OSError as error:
        raise InvalidArgumentError(
            f"erase: writing the keys that replays leave out failed: {error}; check free space and "
            "access rights, and erase again"
        ) from error
    for each in impressions:
        remains[f"open impressions ({each})"] = (
            "a resumed run and a replay leave out those with erased ids; files are removed with the "
            "last snapshot that lists them, which `snapshots.keep` and `snapshots.history` determine"
        )
    if run is not None and isinstance(run.data, StreamData) and run.data.join is not None:
        path = run.data.join.path or "a temporary folder"
        remains[f"working files of a killed run with data.join ({path})"] = (
            "delete them, or start the run again, which removes those in data.join.path"
        )
    for each in filter(None, recorded):
        remains[each] = (
            "hashes of the erased keys, by which `sparring replay` leaves out their events; to remove "
            "them, delete this folder with the recorded cuts"
        )
    return remains


def _open_impressions(folder: str) -> str | None:
    """Returns the folder of the events that wait for labels, if a run with `data.join` has saved any."""
    system, path = fsspec.core.url_to_fs(f"{folder.rstrip('/')}/{OPEN_IMPRESSIONS}")
    return path if system.isdir(path) else None


def _dead_letters(run: RunConfig) -> str | None:
    return run.data.dead_letters if isinstance(run.data, StreamData) else None


def _list_files(run: RunConfig | None) -> list[str]:
    """Returns the files that a run writes besides its snapshots."""
    paths = [] if run is None else [run.report.path, run.report.trace_path, run.metrics.path]
    if run is not None and (letters := _dead_letters(run)):
        paths.append(f"{letters}/rank-{{rank}}.jsonl")
    # Ranks may write separate files; this finds the files of all ranks.
    return [
        found
        for path in paths
        if path is not None
        for found in glob.glob("*".join(map(glob.escape, str(path).split("{rank}"))))  # noqa: PTH207
    ]


def _find_files_with(
    listed: dict[int, str],
    meant: dict[int, list[int]],
    run: RunConfig | None,
    folders: list[str],
    search: list[str],
) -> list[dict[str, Any]]:
    """Searches other files for the ids, except the snapshots from which they were removed."""
    wanted = SearchedIds({text: meant[number] for number, text in listed.items()})
    if not wanted:
        return []
    places = [*_list_files(run), *folders, *search]
    snapshots = [url for folder in folders for url in list_snapshots(folder)]
    try:
        return [asdict(each) for each in search_files(places, wanted, snapshots)]
    except OSError as error:
        raise InvalidArgumentError(
            f"erase: searching a file failed: {error}; fix the cause and run the command again"
        ) from error
