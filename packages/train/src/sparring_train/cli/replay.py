"""``sparring replay``: trains the recorded cuts of a run on a stream again."""

from __future__ import annotations

import os
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from sparring import open_snapshot
from sparring.errors import ConfigError
from sparring_cli import (
    ExitCode,
    JsonOption,
    add_command,
    get_command_context,
    make_console,
    print_json,
    print_warning,
)
from sparring_train.cli.progress import make_progress
from sparring_train.cli.train import ConfigArgument, OverridesArgument
from sparring_train.config.reading.loader import load_config
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.replay import Replay, list_differences, plan_replay

__all__ = ["add_replay"]


def add_replay(application: typer.Typer) -> None:
    add_command(
        application,
        "replay",
        replay,
        examples=[
            "sparring replay run.yaml",
            "sparring replay run.yaml --start 5000 --until 9000 --output replayed --json",
            "sparring replay run.yaml --quarantined --output repaired",
        ],
    )


def replay(
    context: typer.Context,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    start: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="Start from the newest snapshot with at most this number of steps. Default: the "
            "beginning or, if its cuts are not recorded, the oldest snapshot.",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            metavar="STEP",
            help="Number of steps at the end. Default: the step of the newest snapshot.",
            min=1,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the snapshot of the result.",
        ),
    ] = None,
    quarantined: Annotated[
        bool,
        typer.Option(
            "--quarantined",
            help="Train the events that the run has quarantined, from the newest snapshot or --start.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train the recorded cuts of a run on a stream again, and compare the result.

    Compares with the run's snapshot of the same step. Exits with 1 if a bit differs. The run is not
    changed. Events with ids that were erased are not trained; if there are any, nothing is compared.
    Steps that the run has dropped are left out.
    """
    manager = get_command_context(context).plugin_manager
    run = load_config(config, overrides or [], plugin_manager=manager)
    if output is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "replay: several ranks need a common folder for the result; give one by --output"
        )
    if quarantined and (output is None or until is not None):
        raise ConfigError(
            f"replay --quarantined: found --output {output} and --until {until}, expected a folder for "
            "the result, and no --until"
        )
    with ExitStack() as stack:
        folder = output or stack.enter_context(TemporaryDirectory(prefix="sparring-replay-"))
        plan = plan_replay(run, folder, start, until, is_of_quarantine=quarantined)
        progress = make_progress(make_console(is_error=True), run.training.log_interval_seconds)
        try:
            result = find_trainer(run.framework, manager).train(plan.config, manager, progress)
        finally:
            progress.on_end()
        if result.is_terminated:
            raise typer.Exit(ExitCode.TERMINATED)
        if result.rank > 0:
            return
        found = open_snapshot(f"{folder.rstrip('/')}/step-{plan.until:012d}")
        differences = None
        num_erased = result.skipped.get("events_erased", 0)
        if plan.expected is not None and not num_erased:
            differences = list_differences(open_snapshot(plan.expected), found)
    sizes = {cut.world_size for cut in plan.cuts}
    if differences and len(sizes) > 1:
        print_warning(
            f"the cuts were trained by {' and '.join(map(str, sorted(sizes)))} ranks, so the results can "
            "differ by rounding; replay the steps of each number of ranks with --start and --until"
        )
    if as_json:
        print_json(
            {
                "start_step": plan.start_step,
                "steps": plan.until,
                "events": sum(each.num_events for cut in plan.cuts for each in cut.ranges),
                "events_erased": num_erased,
                "compared_with": None if num_erased else plan.expected,
                "differences": differences,
                "output": output,
            }
        )
    else:
        steps = f"steps {plan.start_step + 1:,} to {plan.until:,}"
        typer.echo(f"{steps}: {_describe_outcome(plan, num_erased, differences)}")
    if differences:
        raise typer.Exit(ExitCode.FAILURE)


def _describe_outcome(plan: Replay, num_erased: int, differences: list[str] | None) -> str:
    if num_erased:
        return (
            f"did not train {num_erased:,} events with erased ids, so the result was not compared"
        )
    if plan.is_of_quarantine:
        return (
            "trained the quarantined events; to continue with the result, set snapshots.start_from"
        )
    if plan.expected is None:
        return f"the run has no snapshot after step {plan.until:,} to compare with"
    if differences:
        return f"differs from {plan.expected}: {', '.join(differences)}"
    return f"identical to {plan.expected}"
