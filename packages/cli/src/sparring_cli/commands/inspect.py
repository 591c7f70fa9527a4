"""``sparring inspect``: shows a snapshot, a run, or what another package recognizes."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring import (
    PluginManager,
    Snapshot,
    list_unreadable_snapshots,
    open_snapshot,
)
from sparring.adapter import open_snapshots
from sparring.errors import SnapshotError
from sparring_cli import hookspecs
from sparring_cli.context import get_command_context
from sparring_cli.exit_codes import ExitCode
from sparring_cli.hookspecs import InspectorDescriptor
from sparring_cli.output import (
    make_console,
    print_error,
    print_json,
    print_warning,
    progress_bar,
)
from sparring_cli.registration import JsonOption, VerifyOption, add_command
from sparring_cli.snapshots.formatting import count_of, count_own_bytes, format_bytes
from sparring_cli.snapshots.summary import TableSummary, summarize
from sparring_cli.snapshots.verify import VerifyReport, verify_snapshot

__all__ = ["add_inspect"]


def add_inspect(application: typer.Typer) -> None:
    add_command(
        application,
        "inspect",
        inspect,
        examples=[
            "sparring inspect runs/films",
            "sparring inspect runs/films/step-000000000200 --verify",
            "sparring inspect served/films --json",
        ],
    )


def inspect(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A snapshot, the folder of a run's snapshots, a serving snapshot, or a folder of "
            "serving snapshots.",
        ),
    ],
    verify: VerifyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show a snapshot, the snapshots of a run, or a serving snapshot; exit with 1 if it is damaged.

    A snapshot is shown with its tables, rows, bytes, norms and chain. A run is shown as a list of its
    snapshots; with --verify, its newest snapshot is verified and shown.
    """
    try:
        snapshot = open_snapshot(path)
    except SnapshotError as error:
        # A run or a kind of another package; otherwise the error applies.
        _inspect_other(get_command_context(context).plugin_manager, path, error, verify, as_json)
        return
    facts, is_sound = _inspect_snapshot(snapshot, verify=verify, as_json=as_json)
    if as_json:
        print_json(facts)
    if not is_sound:
        raise typer.Exit(ExitCode.FAILURE)


def _inspect_other(
    manager: PluginManager, path: str, error: SnapshotError, verify: bool, as_json: bool
) -> None:
    manager.extend(hookspecs, {"inspectors": InspectorDescriptor})
    for registered in manager.descriptors():
        inspector = registered.descriptor
        if isinstance(inspector, InspectorDescriptor) and inspector.recognizes(path):
            inspector.inspect(path, verify, as_json)
            return
    found = open_snapshots(path)
    unreadable = {url: str(each) for url, each in list_unreadable_snapshots(path).items()}
    for url, reason in unreadable.items():
        print_warning(f"{url} is not listed, because it cannot be read: {reason}")
    if not found:
        raise error
    facts: dict[str, Any] = {
        "kind": "run",
        "url": path,
        "snapshots": [_facts(each) for each in found],
        "size_bytes": sum(map(count_own_bytes, found)),
        "unreadable": unreadable,
    }
    if not as_json:
        _print_run(make_console(), found)
    is_sound = True
    if verify:
        facts["newest"], is_sound = _inspect_snapshot(found[-1], verify=True, as_json=as_json)
    if as_json:
        print_json(facts)
    if not is_sound:
        raise typer.Exit(ExitCode.FAILURE)


def _inspect_snapshot(
    snapshot: Snapshot, *, verify: bool, as_json: bool
) -> tuple[dict[str, Any], bool]:
    """Prints a snapshot, unless the facts are printed as JSON. Returns them, and whether it is sound."""
    report = None
    if verify:
        size = sum(map(count_own_bytes, snapshot.chain))
        with progress_bar("verify", "bytes", size, as_json=as_json) as advance:
            report = verify_snapshot(snapshot, on_bytes=advance)
    is_sound = report is None or report.is_sound
    # Do not read the tables of a damaged snapshot.
    summaries = [summarize(snapshot, name) for name in snapshot.tables] if is_sound else []
    if not as_json:
        _print(snapshot, summaries, report)
    return _facts(snapshot) | _details(snapshot, summaries, report), is_sound


def _print_run(console: Console, found: list[Snapshot]) -> None:
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
            format_bytes(count_own_bytes(snapshot)),
        )
    console.print(table)
    size = format_bytes(sum(map(count_own_bytes, found)))
    console.print(Text(f"{count_of(len(found), 'snapshot')}, {size}"))


def _print(snapshot: Snapshot, summaries: list[TableSummary], report: VerifyReport | None) -> None:
    console = make_console()
    head = Text(snapshot.url, style="bold")
    head.append(
        f"\nstep {snapshot.step:,}, written by {count_of(snapshot.world_size, 'rank')}, "
        f"manifest {snapshot.manifest_hash}",
        style="not bold default",
    )
    console.print(head)
    if snapshot.base is None:
        console.print(f"full, {format_bytes(count_own_bytes(snapshot))}")
    for place, each in enumerate(snapshot.chain if snapshot.base else ()):
        kind = "full" if each.base is None else "delta"
        console.print(
            Text(
                f"{'  ' * place}{kind} {each.name}, step {each.step:,}, "
                f"{format_bytes(count_own_bytes(each))}"
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
        checked = f"{count_of(report.num_files, 'file')}, {format_bytes(report.num_bytes)}"
        console.print(Text(f"verified: {checked}, all as written", style="green"))
    else:
        found = count_of(len(report.problems), "problem")
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
            format_bytes(each.size_bytes),
            *("" if norm is None else f"{norm:.4g}" for norm in norms),
        )
        if each.num_non_finite:
            table.add_row(
                Text(f"  {count_of(each.num_non_finite, 'embedding')} not finite", style="red")
            )
    return table


def _facts(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "kind": "snapshot",
        "url": snapshot.url,
        "step": snapshot.step,
        "world_size": snapshot.world_size,
        "manifest_hash": snapshot.manifest_hash,
        "chain": [each.url for each in snapshot.chain],
        "size_bytes": sum(map(count_own_bytes, snapshot.chain)),
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
