"""``sparring plan``: makes, checks, explains and compares plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from sparring.errors import ConfigError
from sparring_cli import get_command_context, make_console
from sparring_plan.kubernetes_command import kubernetes
from sparring_plan.planning.costs.costs import RESOURCES
from sparring_plan.planning.costs.sketch import read_column_ids, sketch_ids
from sparring_plan.planning.diff import diff_plans
from sparring_plan.planning.inputs import read_inputs
from sparring_plan.planning.plan import Plan, TablePlan, read_plan
from sparring_plan.planning.planner import (
    check_plan,
    compute_pin_costs,
    list_alternatives,
    make_plan,
)
from sparring_plan.sheet_command import simulate

__all__ = ["add_plan"]

_Inputs = Annotated[Path, typer.Argument(help="The topology and the tables: a YAML file.")]
_Plan = Annotated[Path, typer.Argument(help="A plan that `sparring plan make` has written.")]


def add_plan(application: typer.Typer) -> None:
    group = typer.Typer(help="Plan how tables are shared out among ranks.", no_args_is_help=True)
    for command in (make, check, explain, diff, simulate, report, kubernetes, calibrate, sketch):
        group.command(command.__name__)(command)
    application.add_typer(group, name="plan")


def make(
    inputs: _Inputs,
    output: Annotated[
        Path | None, typer.Option(help="The file of the plan; without it the plan is printed.")
    ] = None,
    pin: Annotated[
        Path | None,
        typer.Option(help="Keep what this plan pins; without it, what the file of --output pins."),
    ] = None,
) -> None:
    """Find a plan: of each table the kind of sharding, its ranks, and what that costs.

    Tables of an earlier plan that have `pinned: true`, or were edited, are kept as they are.
    """
    if pin is None and output is not None and output.exists():
        pin = output
    before = None if pin is None else read_plan(pin)
    plan = make_plan(*read_inputs(inputs), before=before)
    if output is None:
        typer.echo(plan.to_yaml(), nl=False)
        return
    try:
        output.write_text(plan.to_yaml(), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot write the plan: {error.strerror}") from None
    typer.echo(f"{output}: {_figures(plan)}")
    if plan.kept:
        typer.echo(
            f"kept from {pin}: {', '.join(plan.kept)}; sparring plan check says what that costs"
        )


def check(plan: _Plan, inputs: _Inputs) -> None:
    """Check that a plan fits its inputs, and say what it costs now, edits of yours included."""
    read = read_plan(plan)
    checked = check_plan(read, *read_inputs(inputs))
    typer.echo(f"{plan}: fits; {_figures(checked)}")
    if read.inputs != checked.inputs:
        typer.echo("the inputs have changed since this plan was made")
    if read.step_ms != checked.step_ms:
        typer.echo(f"the file says {read.step_ms:g} ms")
    if read.kept:
        pins = compute_pin_costs(read, *read_inputs(inputs))
        with_, without = (
            "no plan that fits" if each is None else f"{each:g} ms"
            for each in (pins.with_ms, pins.without_ms)
        )
        typer.echo(
            f"pinned or edited: {', '.join(pins.names)}; the best plan found with these: {with_}, "
            f"without: {without}"
        )


def explain(
    table: Annotated[str, typer.Argument(help="The name of a table.")], plan: _Plan, inputs: _Inputs
) -> None:
    """Show each option of a table: the step of the plan with it, and what it costs a rank."""
    read = read_plan(plan)
    found = list_alternatives(read, *read_inputs(inputs), table)
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
            "no room" if each.step_ms is None else f"{each.step_ms:.4g}",
            f"{each.bytes / 2**20:,.1f}",
            *(f"{each.resource_ms[resource]:.3g}" for resource in RESOURCES),
        )
    console.print(shown)
    console.print(
        "*: in the plan. step ms: of the plan with this option, its other tables where they are. "
        "hits: ids whose row the first tier of a stack has. MiB and the milliseconds of each "
        "resource: of the table's busiest rank."
    )


def report(
    plan: _Plan,
    inputs: _Inputs,
    output: Annotated[Path, typer.Argument(help="The HTML file; it loads nothing.")],
) -> None:
    """Write a page: the load and memory of each rank, what bounds the step, and each table."""
    # Only here: other commands need no report.
    from sparring_plan.report.page import write_report

    write_report(output, read_plan(plan), *read_inputs(inputs))
    typer.echo(f"{output}: written")


def diff(
    before: Annotated[Path, typer.Argument(help="A plan.")],
    after: Annotated[Path, typer.Argument(help="Another plan.")],
) -> None:
    """Show which tables two plans hold differently, and the bytes that the change moves."""
    old, new = read_plan(before), read_plan(after)
    changes = diff_plans(old, new)
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
        if any(table.made not in (None, table.choice_digest) for table in each.tables.values()):
            typer.echo(
                f"{path} was edited since it was made, and its step is of before; sparring plan check "
                "says what it is now"
            )


def calibrate(
    context: typer.Context,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("calibration.yaml"),
    path: Annotated[
        Path | None, typer.Option(help="A folder on the disk that RocksDB would have.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of the Redis that rows would be in.")] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="package.module:function, which returns what a step of the dense model runs: a "
            "callable, or a tuple of a module and its inputs."
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
        typer.echo(sentence)
    machine = measured.calibration.machine
    assert machine is not None
    storages = ", ".join(measured.calibration.storages)
    typer.echo(
        f"{output}: {storages}; messages and links over {machine.measured_over}; "
        f"{measured.seconds:.1f} s"
    )


def sketch(
    data: Annotated[Path, typer.Argument(help="A .parquet, .csv or .npy file.")],
    columns: Annotated[
        list[str] | None, typer.Argument(help="Its columns with ids of one table.")
    ] = None,
    ids: Annotated[int | None, typer.Option(min=1, help="Ids to read; without it all.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="The file of the sketch; without it it is printed.")
    ] = None,
) -> None:
    """Count how often keys are asked for in your data, as `skew` of a table takes it."""
    text = sketch_ids(read_column_ids(data, columns or [], ids)).to_yaml()
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot write the sketch: {error.strerror}") from None


def _figures(plan: Plan) -> str:
    full = "" if plan.memory_full is None else f"; memory is full: {plan.memory_full}"
    return (
        f"{len(plan.tables)} tables on {plan.ranks} ranks, a step of {plan.step_ms:g} ms; no plan is "
        f"under {plan.bound_ms:g} ms (gap {plan.gap:.2%}, by {plan.solver}){full}"
    )


def _place(table: TablePlan | None) -> str:
    if table is None:
        return "absent"
    if table.ranks == "all":
        return f"{table.kind} on all ranks"
    ranks = f"rank{'' if len(table.ranks) == 1 else 's'} {', '.join(map(str, table.ranks))}"
    return f"{table.kind} on {ranks}"
