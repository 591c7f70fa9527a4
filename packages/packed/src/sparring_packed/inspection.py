"""Shows and verifies serving snapshots, for ``sparring inspect``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table
from rich.text import Text

from sparring.adapter import locate
from sparring.errors import SnapshotError
from sparring_cli import make_console, print_json
from sparring_packed.manifest import (
    FORMAT,
    ServingManifest,
    read_manifest,
    read_manifest_text,
)
from sparring_packed.tables import PackedTable
from sparring_packed.tables import open as open_tables

__all__ = ["inspect_serving_snapshot", "is_serving_snapshot"]


def is_serving_snapshot(url: str) -> bool:
    """Returns whether there is a serving snapshot at a path or URL, or in the folder there."""
    try:
        place, name = locate(url)
        inside = [f"{url.rstrip('/')}/{each}" for each in place.open(name).names()]
    except (OSError, SnapshotError):
        return False
    return any(map(_has_serving_manifest, (url, *inside)))


def _has_serving_manifest(url: str) -> bool:
    try:
        return FORMAT.encode() in read_manifest_text(url)
    except SnapshotError:
        return False


@dataclass(frozen=True, slots=True)
class _Own:
    """Size of a table's own data in one serving snapshot, without its bases."""

    num_rows: int
    num_erased: int
    size_bytes: int


def inspect_serving_snapshot(url: str, verify: bool, as_json: bool) -> None:
    """Shows a serving snapshot, or the newest one in a folder: tables, rows, bytes and chain.

    Args:
        url: Path or URL.
        verify: Whether to read all files and check every hash.
        as_json: Whether to print JSON instead of text.

    Raises:
        SnapshotError: It does not exist, or is damaged.
    """
    # Maps the snapshot like a server, so that the same code reads it.
    with (
        TemporaryDirectory(prefix="sparring-") as copies,
        open_tables(url, verify="all" if verify else "open", cache=copies) as opened,
    ):
        newest, tables = opened.snapshot_url, opened.tables
        chain = _chain(newest)
    if newest.startswith(copies):
        # Print the URL of the original instead of the temporary copy.
        given, name = url.rstrip("/"), os.path.basename(newest)  # noqa: PTH119 - of a URL, too
        newest = given if given.endswith(f"/{name}") else f"{given}/{name}"
    if as_json:
        print_json(_collect_facts(newest, tables, chain, is_verified=verify))
    else:
        _print(newest, tables, chain, is_verified=verify)


def _chain(url: str) -> dict[str, ServingManifest]:
    """Returns manifests by name, from the newest to the full snapshot."""
    folder, name = os.path.split(url.rstrip("/"))
    chain = {name: read_manifest(url)}
    while (base := next(reversed(chain.values())).base) is not None:
        chain[base.name] = read_manifest(f"{folder}/{base.name}")
    return chain


def _own(manifest: ServingManifest, table: str) -> _Own:
    files = [each for each in manifest.files if each.table == table]

    def keys(kind: str) -> int:
        return sum(each.num_keys for each in files if each.kind == kind)

    return _Own(keys("rows"), keys("erased"), sum(each.size_bytes for each in files))


def _collect_facts(
    url: str,
    tables: Mapping[str, PackedTable],
    chain: Mapping[str, ServingManifest],
    *,
    is_verified: bool,
) -> dict[str, Any]:
    return {
        "kind": "serving snapshot",
        "url": url,
        "verified": is_verified,
        "chain": [
            {
                "name": name,
                "version": each.hash,
                "generation": each.generation,
                "step": each.step,
                "published": each.published,
                "is_delta": each.base is not None,
                "source": each.source.name,
                "model": {file.kind: file.size_bytes for file in each.model},
                "tables": {
                    table: {"rows": own.num_rows, "erased": own.num_erased, "bytes": own.size_bytes}
                    for table in tables
                    for own in [_own(each, table)]
                },
            }
            for name, each in chain.items()
        ],
        "tables": {
            name: {
                "dim": each.dim,
                "dtype": each.dtype,
                "trained_dtype": each.trained_dtype,
                "row_bytes": each.row_bytes,
                "most_rows": each.num_rows,
            }
            for name, each in tables.items()
        },
    }


def _print(
    url: str,
    tables: Mapping[str, PackedTable],
    chain: Mapping[str, ServingManifest],
    *,
    is_verified: bool,
) -> None:
    console = make_console()
    console.print(Text(url, style="bold"))
    for depth, (name, each) in enumerate(chain.items()):
        kind = "full" if each.base is None else "delta"
        when = datetime.fromtimestamp(each.published, timezone.utc)
        console.print(
            f"{'  ' * depth}{kind} {name}, step {each.step:,}, version {each.hash}, published "
            f"{when:%Y-%m-%d %H:%M:%S} UTC, {_mib(each.files)}{_describe_model(each)}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
    shown = Table(
        "table", "dim", "dtype", "rows", "bytes per row", "rows of deltas", "erased", "MiB"
    )
    for column in (1, 3, 4, 5, 6, 7):
        shown.columns[column].justify = "right"
    layers = list(chain.values())
    for name, table in tables.items():
        own = [_own(each, name) for each in layers]
        bound = "" if len(layers) == 1 else "≤ "
        shown.add_row(
            name, f"{table.dim:,}", table.dtype, f"{bound}{table.num_rows:,}",
            f"{table.row_bytes:,}", f"{sum(each.num_rows for each in own[:-1]):,}",
            f"{sum(each.num_erased for each in own):,}",
            f"{sum(each.size_bytes for each in own) / 2**20:,.2f}",
        )  # fmt: skip
    console.print(shown)
    if is_verified:
        num_files = sum(len(each.files) + len(each.model) for each in layers)
        console.print(Text(f"verified: {num_files:,} files, all as written", style="green"))


def _describe_model(manifest: ServingManifest) -> str:
    return "".join(f", {each.kind} {each.size_bytes / 2**20:,.2f} MiB" for each in manifest.model)


def _mib(files: Sequence[Any]) -> str:
    return f"{sum(each.size_bytes for each in files) / 2**20:,.2f} MiB"
