"""`join_job`: the container of several ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparring import StepContainer, make_plugin_manager
from sparring import join_job as join
from sparring.adapter import AUTO
from sparring.contracts import ShardingPlan, TableSharding

__all__ = ["join_job"]


@dataclass(frozen=True, slots=True)
class _Choice:
    backend: str
    options: Mapping[str, Any] = field(default_factory=dict)


def join_job(
    collective: str = AUTO,
    rendezvous: str = AUTO,
    *,
    deadline_seconds: float = 60.0,
    plan: ShardingPlan | Mapping[str, TableSharding | str] | None = None,
    **options: Any,
) -> StepContainer:
    """The container of the job that this process was started for; alone, that of a world of one.

    Its ``close`` leaves the job.

    Args:
        collective: how ranks exchange buffers: ``mpi`` for ranks of mpiexec, ``torch`` for those of
            torchrun where sparring-torch is installed, or that of any plugin. ``auto``: ``mpi`` under
            mpiexec.
        rendezvous: where ranks meet; ``auto``: by the variables of what started them.
        deadline_seconds: the longest that one exchange may take.
        plan: how tables are sharded, as of `sparring.StepContainer`.
        **options: of the collective.

    Raises:
        PluginError: a backend that no plugin offers, or that cannot run here.
        InvalidArgumentError: options that it does not take; an environment that makes no sense.
        DeadlineError: not all ranks came.
    """
    manager = make_plugin_manager()
    job = join(
        _Choice(rendezvous),
        _Choice(collective, options),
        framework="jax",
        deadline_seconds=deadline_seconds,
        plugin_manager=manager,
    )
    try:
        return StepContainer(
            collective=job.collective, rendezvous=job.rendezvous, plugin_manager=manager, plan=plan
        )
    except BaseException:
        job.close()
        raise
