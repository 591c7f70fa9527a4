"""``sparring snapshots | inspect | export | import | compact``: lists, checks, converts snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from sparring import (
    Snapshot,
    latest_snapshot,
    list_snapshots,
    list_unreadable_snapshots,
    open_snapshot,
)
from sparring.adapter import compact
from sparring.errors import SnapshotError
from sparring_cli.output import make_console, print_error, print_json, print_warning
from sparring_cli.snapshots.export import export_tables
from sparring_cli.snapshots.summary import TableSummary, summarize
from sparring_cli.snapshots.table_import import import_table
from sparring_cli.snapshots.verify import VerifyReport, verify_snapshot

__all__ = ["add_compact", "add_export", "add_import", "add_inspect", "add_snapshots"]

_URL = typer.Argument(metavar="SNAPSHOT", help="Folder, or URL such as s3://bucket/run/step-7.")
_PLACE = typer.Argument(
    metavar="SNAPSHOT", help="Snapshot, or folder of a run's snapshots; uses the newest."
)
_JSON = typer.Option("--json", help="Print one line of JSON.")


def add_snapshots(application: typer.Typer) -> None:
    application.command("snapshots")(snapshots)


def add_inspect(application: typer.Typer) -> None:
    application.command("inspect")(inspect)


def add_export(application: typer.Typer) -> None:
    application.command("export")(export)


def add_import(application: typer.Typer) -> None:
    application.command("import")(import_embeddings)


def add_compact(application: typer.Typer) -> None:
    application.command("compact")(compact_chain)


def snapshots(
    root: Annotated[str, typer.Argument(metavar="FOLDER", help="A folder of snapshots.")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """List the committed snapshots in a folder."""
    found = [open_snapshot(url) for url in list_snapshots(root)]
    for url, error in list_unreadable_snapshots(root).items():
        print_warning(f"{url} is not listed, because it cannot be read: {error}")
    if as_json:
        print_json([_facts(snapshot) for snapshot in found])
        return
    table = Table("snapshot", "step", "kind", "ranks", "tables", "own bytes")
    for column in (1, 3, 4, 5):
        table.columns[column].justify = "right"
    for snapshot in found:
        table.add_row(
            snapshot.url,
            f"{snapshot.step:,}",
            "full" if snapshot.base is None else f"delta over {snapshot.base.name}",
            f"{snapshot.world_size:,}",
            f"{len(snapshot.tables):,}",
            _bytes(_count_own_bytes(snapshot)),
        )
    console = make_console()
    console.print(table if found else Text(f"no snapshots in {root}", style="dim"))


def inspect(
    url: Annotated[str, _PLACE],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all files and check every hash.")
    ] = False,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Show the tables, rows, bytes, norms and chain of a snapshot; exit with 1 if it is damaged."""
    snapshot = _snapshot_at(url)
    report = verify_snapshot(snapshot) if verify else None
    is_sound = report is None or report.is_sound
    # Do not read the tables of a damaged snapshot.
    summaries = [summarize(snapshot, name) for name in snapshot.tables] if is_sound else []
    if as_json:
        print_json(_facts(snapshot) | _details(snapshot, summaries, report))
    else:
        _print(snapshot, summaries, report)
    if not is_sound:
        raise typer.Exit(1)


def _snapshot_at(url: str) -> Snapshot:
    """Returns the snapshot at a URL, or the newest one in that folder."""
    try:
        return open_snapshot(url)
    except SnapshotError:
        newest = latest_snapshot(url)
        if newest is None:
            raise
        return newest


def export(
    url: Annotated[str, _PLACE],
    output: Annotated[Path, typer.Option(help="Folder to write to.")],
    to: Annotated[
        Literal["parquet", "npy", "faiss"],
        typer.Option(help="Format: columns in Parquet, arrays of numpy, or a Faiss index."),
    ] = "parquet",
    state: Annotated[bool, typer.Option("--state", help="Also write the optimizer state.")] = False,
) -> None:
    """Write the tables of a snapshot as files for other programs."""
    snapshot = _snapshot_at(url)
    for name, targets in export_tables(snapshot, output, to=to, with_state=state).items():
        for target in targets:
            typer.echo(f"{name}: {target}, {_bytes(target.stat().st_size)}")


def import_embeddings(
    source: Annotated[str, typer.Argument(help="File of embeddings.")],
    into: Annotated[str, typer.Option(metavar="SNAPSHOT", help="Snapshot to write.")],
    table: Annotated[str, typer.Option(help="Name of the table.")],
    kind: Annotated[
        Literal["npy", "parquet"],
        typer.Option("--from", help="Array (n, dim), or Parquet columns 'key' and 'embedding'."),
    ],
    ids: Annotated[
        str | None, typer.Option(help="With --from npy: file of n ids. Default: 0 to n - 1.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Data type of the rows.")] = "float32",
) -> None:
    """Convert a file of embeddings to a snapshot with one table, for container.load."""
    made = import_table(source, into, table, kind=kind, ids=ids, dtype=dtype)
    rows = sum(entry.num_keys for entry in made.files(table, "rows"))
    typer.echo(
        f"{made.url}: {_count(rows, 'row')} of table {table!r}, {_bytes(_count_own_bytes(made))}"
    )


def compact_chain(
    url: Annotated[str, _URL],
    into: Annotated[str, typer.Argument(metavar="INTO", help="Snapshot to write.")],
) -> None:
    """Merge a chain of deltas into one full snapshot."""
    made = compact(url, into)
    typer.echo(f"{made.url}: step {made.step:,}, {_bytes(_count_own_bytes(made))}")


def _print(snapshot: Snapshot, summaries: list[TableSummary], report: VerifyReport | None) -> None:
    console = make_console()
    head = Text(snapshot.url, style="bold")
    head.append(
        f"\nstep {snapshot.step:,}, written by {_count(snapshot.world_size, 'rank')}, "
        f"manifest {snapshot.manifest_hash}",
        style="not bold default",
    )
    console.print(head)
    if snapshot.base is None:
        console.print(f"full, {_bytes(_count_own_bytes(snapshot))}")
    for place, each in enumerate(snapshot.chain if snapshot.base else ()):
        kind = "full" if each.base is None else "delta"
        console.print(
            Text(
                f"{'  ' * place}{kind} {each.name}, step {each.step:,}, {_bytes(_count_own_bytes(each))}"
            )
        )
    if summaries:
        console.print(_tables(summaries))
    states = snapshot.state_names()
    console.print(Text(f"state: {', '.join(states) or 'none'}"))
    if report is None:
        return
    for problem in report.problems:
        print_error(problem.message)
    if report.is_sound:
        checked = f"{_count(report.num_files, 'file')}, {_bytes(report.num_bytes)}"
        console.print(Text(f"verified: {checked}, all as written", style="green"))
    else:
        found = _count(len(report.problems), "problem")
        console.print(Text(f"DAMAGED: {found}; load an older snapshot", style="bold red"))


def _tables(summaries: list[TableSummary]) -> Table:
    table = Table(
        "table", "dim", "dtype", "state", "rows", "files", "bytes", "norm min", "mean", "max"
    )
    for column in (1, 4, 5, 6, 7, 8, 9):
        table.columns[column].justify = "right"
    for each in summaries:
        described = each.table
        state = f"{described.state_width} {described.state_method}".strip()
        norms = (each.norm_min, each.norm_mean, each.norm_max)
        table.add_row(
            described.name,
            str(described.dim),
            described.dtype,
            state if described.state_width else "",
            f"{each.num_rows:,}",
            f"{each.num_files:,}",
            _bytes(each.size_bytes),
            *("" if norm is None else f"{norm:.4g}" for norm in norms),
        )
        if each.num_non_finite:
            table.add_row(
                Text(f"  {_count(each.num_non_finite, 'embedding')} not finite", style="red")
            )
    return table


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "url": snapshot.url,
        "step": snapshot.step,
        "world_size": snapshot.world_size,
        "manifest_hash": snapshot.manifest_hash,
        "chain": [each.url for each in snapshot.chain],
        "size_bytes": sum(map(_count_own_bytes, snapshot.chain)),
    }


def _details(
    snapshot: Snapshot, summaries: list[TableSummary], report: VerifyReport | None
) -> dict[str, Any]:
    tables = {
        each.table.name: {
            "rows": each.num_rows,
            "files": each.num_files,
            "size_bytes": each.size_bytes,
            "dim": each.table.dim,
            "dtype": each.table.dtype,
            "state_width": each.table.state_width,
            "state_method": each.table.state_method,
            "has_scores": each.table.has_scores,
            "norm_min": each.norm_min,
            "norm_mean": each.norm_mean,
            "norm_max": each.norm_max,
            "non_finite": each.num_non_finite,
        }
        for each in summaries
    }
    found: dict[str, Any] = {"tables": tables, "state": snapshot.state_names()}
    if report is not None:
        found["verified"] = report.is_sound
        found["problems"] = [
            {
                "snapshot": each.snapshot,
                "file": each.file,
                "offset": each.offset,
                "message": each.message,
            }
            for each in report.problems
        ]
    return found


def _count_own_bytes(snapshot: Snapshot) -> int:
    return sum(entry.size_bytes for entry in snapshot.files())


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _bytes(count: int) -> str:
    size, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count:,} B" if unit == "B" else f"{size:.1f} {unit}"
