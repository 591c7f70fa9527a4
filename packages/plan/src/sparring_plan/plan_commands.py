"""``sparring plan``: creates, checks, explains and compares plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sparring_cli import (
    JsonOption,
    add_command,
    get_command_context,
    make_console,
    print_document,
    print_json,
    print_note,
)
from sparring_plan.kubernetes_command import kubernetes
from sparring_plan.planning.costs.costs import RESOURCES, compute_option_costs
from sparring_plan.planning.costs.sketch import read_column_ids, sketch_ids
from sparring_plan.planning.diff import diff_plans
from sparring_plan.planning.inputs import read_inputs
from sparring_plan.planning.plan import Plan, TablePlan, read_plan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import (
    check_plan,
    compute_pin_costs,
    list_alternatives,
    make_plan,
)
from sparring_plan.report.ranks import RankSummary, summarize_ranks
from sparring_plan.sheet_command import simulate
from sparring_plan.slurm_command import slurm

__all__ = ["add_plan"]

_MAX_RANKS = 8
"""Maximum number of ranks in the summary of a plan."""

_Inputs = Annotated[Path, typer.Argument(help="YAML file with the topology and the tables.")]
_Plan = Annotated[Path, typer.Argument(help="Plan written by `sparring plan make`.")]


def add_plan(application: typer.Typer) -> None:
    group = typer.Typer(help="Plan how tables are distributed among ranks.", no_args_is_help=True)
    for command, examples in _COMMANDS.items():
        add_command(group, command.__name__, command, examples=examples)
    application.add_typer(group, name="plan")


def make(
    inputs: _Inputs,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; by default, the plan is printed."),
    ] = None,
    pin: Annotated[
        Path | None,
        typer.Option(help="Plan whose pins are kept; by default, the file of --output."),
    ] = None,
) -> None:
    """Create a plan: the sharding kind and ranks of each table, with their costs.

    Tables of an earlier plan that have `pinned: true` or were edited do not change.
    """
    if pin is None and output is not None and output.exists():
        pin = output
    before = None if pin is None else read_plan(pin)
    given = read_inputs(inputs)
    plan = make_plan(*given, before=before)
    print_document(plan.to_yaml(), output)
    if output is None:
        return
    print_note(f"{output}: {_figures(plan)}")
    _print_ranks(summarize_ranks(plan, make_placement(plan, compute_option_costs(*given))))
    if plan.kept:
        print_note(
            f"kept from {pin}: {', '.join(plan.kept)}; sparring plan check prints the cost of this"
        )


def check(plan: _Plan, inputs: _Inputs, as_json: JsonOption = False) -> None:
    """Check that a plan fits its inputs, and print its current costs, including your edits."""
    read = read_plan(plan)
    checked = check_plan(read, *read_inputs(inputs))
    pins = compute_pin_costs(read, *read_inputs(inputs)) if read.kept else None
    if as_json:
        print_json(
            {
                "plan": str(plan),
                "ranks": checked.ranks,
                "tables": len(checked.tables),
                "step_ms": checked.step_ms,
                "bound_ms": checked.bound_ms,
                "gap": checked.gap,
                "solver": checked.solver,
                "memory_full": checked.memory_full,
                "inputs_changed": read.inputs != checked.inputs,
                "step_ms_in_file": read.step_ms,
                "pins": None if pins is None else asdict(pins),
            }
        )
        return
    typer.echo(f"{plan}: fits; {_figures(checked)}")
    if read.inputs != checked.inputs:
        typer.echo("the inputs have changed since this plan was created")
    if read.step_ms != checked.step_ms:
        typer.echo(f"the file contains {read.step_ms:g} ms")
    if pins is not None:
        with_, without = (
            "no plan that fits" if each is None else f"{each:g} ms"
            for each in (pins.with_ms, pins.without_ms)
        )
        typer.echo(
            f"pinned or edited: {', '.join(pins.names)}; the best plan found with these: {with_}, "
            f"without: {without}"
        )


def explain(
    plan: _Plan,
    inputs: _Inputs,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    as_json: JsonOption = False,
) -> None:
    """Show each option of a table: the resulting step time, and its costs per rank."""
    read = read_plan(plan)
    found = list_alternatives(read, *read_inputs(inputs), table)
    if as_json:
        options = [asdict(each) for each in found]
        because = read.tables[table].because
        print_json({"table": table, "because": because, "options": options})
        return
    console = make_console()
    console.print(f"{table}: {read.tables[table].because}")
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("", "kind", "columns", "ranks", "transfer", "storage", "hits", "step ms", "MiB"):
        shown.add_column(
            column, no_wrap=True, justify="left" if column in {"", "kind"} else "right"
        )
    for column in RESOURCES:
        shown.add_column(column, no_wrap=True, justify="right")
    for each in found:
        shown.add_row(
            "*" if each.is_chosen else "",
            each.kind,
            str(each.columns),
            str(each.num_shards),
            each.transfer,
            each.storage,
            "" if each.hit_rate is None else f"{each.hit_rate:.1%}",
            "too large" if each.step_ms is None else f"{each.step_ms:.4g}",
            f"{each.bytes / 2**20:,.1f}",
            *(f"{each.resource_ms[resource]:.3g}" for resource in RESOURCES),
        )
    console.print(shown)
    console.print(
        "*: in the plan. step ms: step of the plan with this option and unchanged other tables. "
        "hits: ids whose row is in the first tier of a stack. MiB and milliseconds per resource: "
        "on the table's busiest rank."
    )


def report(
    plan: _Plan,
    inputs: _Inputs,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="HTML file to write, without external resources."),
    ],
) -> None:
    """Write a page with the load and memory of each rank, the limits of the step, and each table."""
    # Imported here, because other commands do not need it.
    from sparring_plan.report.page import write_report

    write_report(output, read_plan(plan), *read_inputs(inputs))
    print_note(f"{output}: written")


def diff(
    before: Annotated[Path, typer.Argument(help="A plan.")],
    after: Annotated[Path, typer.Argument(help="Another plan.")],
    as_json: JsonOption = False,
) -> None:
    """Show which tables two plans shard differently, and how many bytes the change moves."""
    old, new = read_plan(before), read_plan(after)
    changes = diff_plans(old, new)
    if as_json:
        print_json(
            {
                "before_step_ms": old.step_ms,
                "after_step_ms": new.step_ms,
                "changes": [
                    {
                        "table": each.name,
                        "before": _place(each.before),
                        "after": _place(each.after),
                        "moved_bytes": each.moved_bytes,
                    }
                    for each in changes
                ],
                "edited": [
                    str(path) for path, each in ((before, old), (after, new)) if _is_edited(each)
                ],
            }
        )
        return
    for change in changes:
        typer.echo(
            f"{change.name}: {_place(change.before)} -> {_place(change.after)}, "
            f"{change.moved_bytes / 2**20:,.1f} MiB move"
        )
    moved = sum(change.moved_bytes for change in changes)
    differ = "1 table differs" if len(changes) == 1 else f"{len(changes)} tables differ"
    typer.echo(
        f"{differ}, {moved / 2**20:,.1f} MiB move; the step: {old.step_ms:g} ms -> {new.step_ms:g} ms"
    )
    for path, each in ((before, old), (after, new)):
        if _is_edited(each):
            typer.echo(
                f"{path} was edited after its creation, and its step time is outdated; sparring plan "
                "check prints the current one"
            )


def calibrate(
    context: typer.Context,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path(
        "calibration.yaml"
    ),
    path: Annotated[Path | None, typer.Option(help="Folder on the disk for RocksDB.")] = None,
    url: Annotated[str | None, typer.Option(help="URL of the Redis server for rows.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="package.module:function, which returns a step of the dense model: a callable, or a "
            "tuple of a module and its inputs."
        ),
    ] = None,
) -> None:
    """Measure this machine for the planner: storages, messages, links, memory, the dense model."""
    from sparring_plan.planning.calibration.calibrate import (
        CalibrateOptions,
        measure,
        write_calibration,
    )

    options = CalibrateOptions(path, url, model)
    measured = measure(options, get_command_context(context).plugin_manager)
    if measured.calibration is None:
        return  # rank 0 writes
    write_calibration(measured.calibration, output)
    for sentence in measured.skipped:
        print_note(sentence)
    machine = measured.calibration.machine
    assert machine is not None
    storages = ", ".join(measured.calibration.storages)
    print_note(
        f"{output}: {storages}; messages and links over {machine.measured_over}; "
        f"{measured.seconds:.1f} s"
    )


def sketch(
    data: Annotated[Path, typer.Argument(help=".parquet, .csv or .npy file.")],
    columns: Annotated[
        list[str] | None, typer.Argument(help="Columns with ids of one table.")
    ] = None,
    ids: Annotated[
        int | None, typer.Option(min=1, help="Number of ids to read; by default, all.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; by default, the sketch is printed."),
    ] = None,
) -> None:
    """Count how often keys occur in your data, for `skew` of a table."""
    text = sketch_ids(read_column_ids(data, columns or [], ids)).to_yaml()
    print_document(text, output)


def _print_ranks(ranks: Sequence[RankSummary]) -> None:
    """Prints a table of all ranks, or of the slowest ones if there are many."""
    shown = ranks
    if len(ranks) > _MAX_RANKS:
        shown = sorted(ranks, key=lambda each: (-each.ms, each.rank))[:_MAX_RANKS]
    kinds = list(ranks[0].memory_bytes)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "rows", *(f"{kind} MiB" for kind in kinds), "predicted ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in shown:
        memory = (f"{each.memory_bytes[kind] / 2**20:,.1f}" for kind in kinds)
        table.add_row(str(each.rank), f"{each.rows:,}", *memory, f"{each.ms:.4g}")
    console = make_console()
    console.print(table)
    if len(shown) < len(ranks):
        console.print(
            f"the {_MAX_RANKS} slowest of {len(ranks):,} ranks; sparring plan report shows all"
        )


def _figures(plan: Plan) -> str:
    full = "" if plan.memory_full is None else f"; memory is full: {plan.memory_full}"
    return (
        f"{len(plan.tables)} tables on {plan.ranks} ranks, a step of {plan.step_ms:g} ms; no plan has "
        f"less than {plan.bound_ms:g} ms (gap {plan.gap:.2%}, by {plan.solver}){full}"
    )


def _is_edited(plan: Plan) -> bool:
    """Returns whether a table was changed after the plan was created."""
    return any(table.made not in (None, table.choice_digest) for table in plan.tables.values())


def _place(table: TablePlan | None) -> str:
    if table is None:
        return "absent"
    if table.ranks == "all":
        return f"{table.kind} on all ranks"
    ranks = f"rank{'' if len(table.ranks) == 1 else 's'} {', '.join(map(str, table.ranks))}"
    return f"{table.kind} on {ranks}"


_COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    make: (
        "sparring plan make inputs.yaml --output plan.yaml",
        "sparring plan make inputs.yaml --pin edited.yaml -o plan.yaml",
    ),
    check: (
        "sparring plan check plan.yaml inputs.yaml",
        "sparring plan check plan.yaml inputs.yaml --json",
    ),
    explain: (
        "sparring plan explain plan.yaml inputs.yaml film",
        "sparring plan explain plan.yaml inputs.yaml film --json",
    ),
    diff: (
        "sparring plan diff old.yaml new.yaml",
        "sparring plan diff old.yaml new.yaml --json",
    ),
    simulate: (
        "sparring plan simulate plan.yaml inputs.yaml",
        "sparring plan simulate inputs.yaml --ranks 8,64,512 --json",
    ),
    report: (
        "sparring plan report plan.yaml inputs.yaml --output plan.html",
        "sparring plan report plan.yaml inputs.yaml -o plan.html",
    ),
    kubernetes: (
        "sparring plan kubernetes plan.yaml inputs.yaml run.yaml --image registry.example/sparring:1 "
        "--output job.yaml",
        "sparring plan kubernetes served/films --image registry.example/sparring:1 --shards 4 "
        "--replicas 2",
    ),
    slurm: (
        "sparring plan slurm run.yaml --nodes 2 --ranks 4 --output job.sbatch",
        "sparring plan slurm run.yaml snapshots.url=runs/films --option=--time=12:00:00",
    ),
    calibrate: (
        "sparring plan calibrate --output calibration.yaml",
        "sparring plan calibrate --path /mnt/flash --url redis://localhost:6379/0",
    ),
    sketch: (
        "sparring plan sketch clicks.parquet item --output item.yaml",
        "sparring plan sketch clicks.csv user friend --ids 1000000",
    ),
}
"""The commands of the group in the order of its help, and their examples."""
