"""The sharding plan of a run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sparring.adapter import AUTO, automatic_plan
from sparring.contracts import Collective, Membership, ShardingPlan
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.plan import plan_request, read_plan_file
from sparring_train.run.result import Progress

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["load_run_plan"]


def load_run_plan(
    config: RunConfig,
    collective: Collective,
    membership: Membership,
    plugin_manager: PluginManager,
    progress: Progress,
) -> ShardingPlan | None:
    """Reads or computes the plan of `config.plan`; None if it is null. All ranks call it.

    Args:
        config: configuration of the run.
        collective: collective of all ranks, not in use.
        membership: membership of this rank.
        plugin_manager: finds the planner.
        progress: receives a description of the plan on rank 0.

    Raises:
        ConfigError: the file is invalid or does not fit: ``file:line:column: message``.
        CapacityError: with ``auto``, the tables do not fit in memory.
        PluginError: no installed planner reads plan files.
    """
    if config.plan is None:
        return None
    request = plan_request(dict(config), collective.world_size)
    if config.plan != AUTO:
        plan = read_plan_file(config.plan, request, plugin_manager)
        shardings = [plan.sharding_of(name) for name in plan.tables]
        counts = Counter(each.kind for each in shardings if each is not None)
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        messages = [f"plan {config.plan}: {len(shardings)} tables: {said}"]
    else:
        made = automatic_plan(request, collective, membership, plugin_manager)
        plan = made.sharding
        messages = [f"plan auto: {each}" for each in made.assumptions]
        messages += [made.summary] if made.summary else []
    if collective.rank == 0:
        for message in messages:
            progress.on_message(message)
    return plan
