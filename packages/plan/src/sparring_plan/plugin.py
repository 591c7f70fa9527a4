"""The commands of sparring-plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="simulate",
            api_version=API_VERSION,
            summary="Simulate the exchange of a step on many ranks.",
            register=_add_simulate,
        ),
        CommandDescriptor(
            name="plan",
            api_version=API_VERSION,
            summary="Plan how tables are shared out among ranks.",
            register=_add_plan,
        ),
    ]


def _add_simulate(app: typer.Typer) -> None:
    from sparring_plan.cli import add_simulate

    add_simulate(app)


def _add_plan(app: typer.Typer) -> None:
    from sparring_plan.plan_commands import add_plan

    add_plan(app)
