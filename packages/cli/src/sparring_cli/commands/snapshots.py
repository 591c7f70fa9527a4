"""``sparring export | import | compact``: converts snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparring import Snapshot, latest_snapshot, open_snapshot
from sparring.adapter import compact
from sparring.errors import SnapshotError
from sparring_cli.output import print_json, progress_bar
from sparring_cli.registration import JsonOption, add_command
from sparring_cli.snapshots.export import export_tables
from sparring_cli.snapshots.formatting import count_of, count_own_bytes, format_bytes
from sparring_cli.snapshots.table_import import import_table

__all__ = ["add_compact", "add_export", "add_import", "open_newest"]

_PLACE = typer.Argument(
    metavar="SNAPSHOT", help="Snapshot, or folder of a run's snapshots; uses the newest."
)


def add_export(application: typer.Typer) -> None:
    add_command(
        application,
        "export",
        export,
        examples=[
            "sparring export runs/films --output vectors",
            "sparring export runs/films/step-000000000200 --to npy --state -o arrays",
        ],
    )


def add_import(application: typer.Typer) -> None:
    add_command(
        application,
        "import",
        import_embeddings,
        examples=[
            "sparring import item.parquet --from parquet --table item --output imported/item",
            "sparring import vectors.npy --from npy --ids ids.npy --table item -o imported/item",
        ],
    )


def add_compact(application: typer.Typer) -> None:
    add_command(
        application,
        "compact",
        compact_chain,
        examples=[
            "sparring compact runs/films --output runs/films-full",
            "sparring compact s3://bucket/run/step-7 --output s3://bucket/full/step-7 --json",
        ],
    )


def open_newest(url: str) -> Snapshot:
    """Returns the snapshot at a URL, or the newest one in that folder.

    Raises:
        SnapshotError: There is none, or it cannot be read.
    """
    try:
        return open_snapshot(url)
    except SnapshotError:
        newest = latest_snapshot(url)
        if newest is None:
            raise
        return newest


def export(
    url: Annotated[str, _PLACE],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write to.")],
    to: Annotated[
        Literal["parquet", "npy", "faiss"],
        typer.Option(help="Format: columns in Parquet, arrays of NumPy, or a Faiss index."),
    ] = "parquet",
    state: Annotated[bool, typer.Option("--state", help="Also write the optimizer state.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tables of a snapshot as files for other programs."""
    snapshot = open_newest(url)
    with progress_bar("export", "rows", _count_stored_rows(snapshot), as_json=as_json) as advance:
        written = export_tables(snapshot, output, to=to, with_state=state, on_rows=advance)
    if as_json:
        files = {name: list(map(_describe_file, paths)) for name, paths in written.items()}
        print_json({"snapshot": snapshot.url, "output": str(output), "tables": files})
        return
    for name, paths in written.items():
        for path in paths:
            typer.echo(f"{name}: {path}, {format_bytes(path.stat().st_size)}")


def import_embeddings(
    source: Annotated[str, typer.Argument(help="File of embeddings.")],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="SNAPSHOT", help="Snapshot to write.")
    ],
    table: Annotated[str, typer.Option(help="Name of the table.")],
    kind: Annotated[
        Literal["npy", "parquet"],
        typer.Option("--from", help="Array (n, dim), or Parquet columns 'key' and 'embedding'."),
    ],
    ids: Annotated[
        str | None, typer.Option(help="With --from npy: file of n ids. Default: 0 to n - 1.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Data type of the rows.")] = "float32",
    as_json: JsonOption = False,
) -> None:
    """Convert a file of embeddings to a snapshot with one table, for container.load."""
    with progress_bar("import", "rows", None, as_json=as_json) as advance:
        made = import_table(source, output, table, kind=kind, ids=ids, dtype=dtype, on_rows=advance)
    rows = sum(entry.num_keys for entry in made.files(table, "rows"))
    size = count_own_bytes(made)
    if as_json:
        print_json({"snapshot": made.url, "table": table, "rows": rows, "size_bytes": size})
    else:
        typer.echo(f"{made.url}: {count_of(rows, 'row')} of table {table!r}, {format_bytes(size)}")


def compact_chain(
    url: Annotated[str, _PLACE],
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="SNAPSHOT", help="Snapshot to write.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Merge a chain of deltas into one full snapshot."""
    snapshot = open_newest(url)
    with progress_bar("compact", "rows", _count_stored_rows(snapshot), as_json=as_json) as advance:
        made = compact(snapshot.url, output, on_rows=advance)
    size = count_own_bytes(made)
    if as_json:
        print_json(
            {
                "snapshot": snapshot.url,
                "output": made.url,
                "step": made.step,
                "size_bytes": size,
                "tables": {name: _count_own_rows(made, name) for name in made.tables},
            }
        )
    else:
        typer.echo(f"{made.url}: step {made.step:,}, {format_bytes(size)}")


def _describe_file(path: Path) -> dict[str, str | int]:
    return {"path": str(path), "size_bytes": path.stat().st_size}


def _count_own_rows(snapshot: Snapshot, table: str) -> int:
    return sum(entry.num_keys for entry in snapshot.files(table, "rows"))


def _count_stored_rows(snapshot: Snapshot) -> int:
    """Counts the rows in all files of a chain. This is at least the number of rows of the tables."""
    return sum(_count_own_rows(each, name) for each in snapshot.chain for name in each.own_tables)
