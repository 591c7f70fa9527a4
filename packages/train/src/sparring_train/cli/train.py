"""``sparring train``: trains and evaluates the model of a configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sparring.errors import ConfigError, PluginError
from sparring_cli import (
    ExitCode,
    JsonOption,
    add_command,
    get_command_context,
    make_console,
    print_json,
    print_warning,
)
from sparring_train.cli.init.command import ModelOption, YesOption
from sparring_train.cli.progress import make_progress
from sparring_train.config.reading.loader import load_config
from sparring_train.data.table.files import is_name_of_table
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.allocator import keep_freed_memory
from sparring_train.run.history import measure_history
from sparring_train.run.result import TrainResult

__all__ = ["ConfigArgument", "OverridesArgument", "add_train"]

_MAX_TABLES_SHOWN = 8

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOTTED.KEY=VALUE",
        help="Values that replace values of the file, for example training.epochs=3.",
        show_default=False,
    ),
]


def add_train(application: typer.Typer) -> None:
    add_command(
        application,
        "train",
        train,
        examples=[
            "sparring train configs/quickstart.yaml",
            "sparring train ratings.csv label=rating",
            "sparring train run.yaml training.epochs=3 --resume --json",
        ],
    )


def train(  # noqa: PLR0913, PLR0917 - typer makes the options of these
    context: typer.Context,
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="The YAML file; or a file of examples, for which a YAML file is written first, like "
            "with `sparring init`.",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="DOTTED.KEY=VALUE",
            help="Values that replace values of the file, for example training.epochs=3. For a file of "
            "examples also roles of columns, for example label=clicked.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume from the newest snapshot in snapshots.url; start from the beginning if there "
            "is none.",
        ),
    ] = False,
    relative_to: Annotated[
        str | None,
        typer.Option(
            "--relative-to",
            metavar="FOLDER",
            help="Resolve relative paths in CONFIG from FOLDER instead of the folder of CONFIG, for "
            "example if the file is mounted elsewhere.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of all ranks to FILE, for https://ui.perfetto.dev.",
        ),
    ] = None,
    model: ModelOption = None,
    yes: YesOption = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="For a file of examples: print what was understood of it, and write and train nothing.",
        ),
    ] = False,
) -> None:
    """Train and evaluate the model of a configuration."""
    own = get_command_context(context)
    manager = own.plugin_manager
    given = list(overrides or ())
    if is_name_of_table(config):
        # Commands of an existing configuration do not need it.
        from sparring_train.cli.init.train_file import train_file

        found = train_file(
            config, given, model, manager, accepts_defaults=yes, is_dry_run=dry_run, as_json=as_json,
            resumes=resume,
        )  # fmt: skip
        if found is None:
            return
        config, given = found
    elif dry_run or model is not None or yes:
        raise ConfigError(
            f"{config}: --dry-run, --model and --yes are for files of examples, found a configuration; "
            "remove them, or check it: sparring config check"
        )
    given += ["snapshots.resume=true"] if resume else []
    if own.log_level is not None:
        given.append(f"logging.level={own.log_level}")
    run_config = load_config(config, given, folder=relative_to, plugin_manager=manager)
    if trace is not None:
        report = run_config.report.model_copy(update={"trace_path": trace})
        run_config = run_config.model_copy(update={"report": report})
    _reject_memory_storage(run_config.snapshots.url)
    framework = manager.framework(run_config.framework)
    reason = framework.unavailable() if framework.unavailable is not None else None
    if reason is not None:
        raise PluginError(f"framework {framework.name!r} is not available: {reason}")
    keep_freed_memory()
    progress = make_progress(
        make_console(is_error=True),
        run_config.training.log_interval_seconds,
        is_logged=run_config.logging.format == "json",
    )
    try:
        result = find_trainer(framework.name, manager).train(run_config, manager, progress)
    finally:
        progress.on_end()
    if result.is_terminated:
        raise typer.Exit(ExitCode.TERMINATED)
    if result.rank == 0:
        _print_end(result, measure_history(run_config.snapshots), as_json=as_json)


def _print_end(result: TrainResult, history: Mapping[str, Any], *, as_json: bool) -> None:
    for name, value in result.metrics.items():
        if not math.isfinite(value):
            shown = " (null in the JSON output)" if as_json else ""
            why = result.extra.get("undefined_metrics")
            reason = why or "the training diverged; lower the learning rate"
            print_warning(f"metric {name} is {value}{shown}; {reason}")
    if as_json:
        print_json(_as_json(result, history))
    else:
        _print_result(make_console(), result)
        for kept in history.values():
            size = kept["size_bytes"] / 1e6
            typer.echo(f"history: {kept['snapshots']:,} snapshots, {size:,.1f} MB")


def _as_json(result: TrainResult, history: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the document of ``--json``."""
    not_admitted = {"not_admitted": result.not_admitted} if result.not_admitted else {}
    tiers = {"tiers": result.tiers} if result.tiers else {}
    peak = result.peak_memory_bytes
    memory = {"peak_memory_bytes": peak} if peak else {}
    why = result.extra.get("undefined_metrics")
    undefined = {"undefined_metrics": why} if why else {}
    best = {} if result.best_step is None else {"best_step": result.best_step}
    validation = {"validation": result.validation} if result.validation else {}
    resumed = {"resumed_steps": result.resumed_steps} if result.resumed_steps else {}
    return {
        "metrics": result.metrics,
        **undefined,
        **validation,
        **best,
        "rows": result.rows,
        **not_admitted,
        **result.skipped,
        **tiers,
        "steps": result.steps,
        **resumed,
        "seconds": result.seconds,
        **memory,
        **history,
    }


def _reject_memory_storage(url: str | None) -> None:
    """Raises if snapshots would be saved in fsspec's memory file system, inside this process."""
    if url is not None and url.partition("://")[0].rpartition("::")[2] == "memory":
        raise ConfigError(
            f"snapshots.url: {url} is in the memory of this command, and is lost when it ends; choose "
            "a folder, or another URL",
            setting="snapshots.url",
        )


def _print_result(console: Console, result: TrainResult) -> None:
    """Prints metrics with their best possible values if known, rows of each table, and time."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    table.add_column(style="dim")
    shown = set()
    for name, value in result.metrics.items():
        best = result.extra.get(f"best_{name}")
        shown.add(f"best_{name}")
        remark = f"best possible {best:.4f}" if isinstance(best, (int, float)) else ""
        table.add_row(f"test {name}", f"{value:.4f}", remark)
    for name, value in result.validation.items():
        table.add_row(
            f"validation {name}", f"{value:.4f}", f"after step {result.best_step:,}, the best step"
        )
    if len(result.rows) <= _MAX_TABLES_SHOWN:
        for name, count in result.rows.items():
            table.add_row(f"rows of {name}", f"{count:,}", "")
    else:
        smallest = min(result.rows, key=lambda name: result.rows[name])
        largest = max(result.rows, key=lambda name: result.rows[name])
        table.add_row(
            f"rows of {len(result.rows)} tables",
            f"{sum(result.rows.values()):,}",
            f"from {result.rows[smallest]:,} ({smallest}) to {result.rows[largest]:,} ({largest})",
        )
    dropped = {name: count for name, count in result.not_admitted.items() if count}
    if dropped:
        most = max(dropped, key=lambda name: dropped[name])
        remark = f"most in {most}: {dropped[most]:,}" if len(dropped) > 1 else f"in {most}"
        table.add_row("gradients not admitted", f"{sum(dropped.values()):,}", remark)
    for name, tiers in result.tiers.items():
        for tier in tiers:
            asked = tier["hits"] + tier["misses"]
            share = f"{tier['hits'] / asked:.1%} hits" if asked else "no lookups"
            remark = f"{share}, {tier['read_seconds'] + tier['write_seconds']:.2f} s"
            table.add_row(f"rows of {name} in {tier['backend']}", f"{tier['rows']:,}", remark)
    remarks = [f"{result.resumed_steps:,} before resuming"] if result.resumed_steps else []
    if result.steps_per_second is not None:
        remarks.append(f"{result.steps_per_second:,.1f} steps/s")
    table.add_row("steps", f"{result.steps:,}", ", ".join(remarks))
    table.add_row("seconds", f"{result.seconds:.1f}", "")
    console.print(table)
    for name, value in {**result.skipped, **result.extra}.items():
        if name not in shown and value is not None:
            console.print(f"{name.replace('_', ' ')}: {value}", markup=False, soft_wrap=True)
