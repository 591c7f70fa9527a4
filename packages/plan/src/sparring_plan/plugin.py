"""Commands and planner of sparring-plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.contracts import API_VERSION, CommandDescriptor, PlannerDescriptor, hookimpl

if TYPE_CHECKING:
    import typer

    from sparring.contracts import PlanRequest, PlanResult, ShardingPlan


@hookimpl
def sparring_register_commands() -> Sequence[CommandDescriptor]:
    return [
        CommandDescriptor(
            name="plan",
            group="Plan",
            api_version=API_VERSION,
            summary="Plan how tables are distributed among ranks.",
            register=_add_plan,
        ),
    ]


@hookimpl
def sparring_register_planners() -> Sequence[PlannerDescriptor]:
    return [
        PlannerDescriptor(
            name="auto",
            api_version=API_VERSION,
            summary="Minimizes the step time of a cost model; reads files of `sparring plan`.",
            factory=_plan_of_request,
            read=_plan_of_file,
        )
    ]


def _plan_of_request(request: PlanRequest) -> PlanResult:
    from sparring_plan.planning.automatic import plan_from_request

    return plan_from_request(request)


def _plan_of_file(path: str, request: PlanRequest) -> ShardingPlan:
    from sparring_plan.planning.automatic import plan_from_file

    return plan_from_file(path, request)


def _add_plan(app: typer.Typer) -> None:
    from sparring_plan.plan_commands import add_plan

    add_plan(app)
