"""`join_job`: creates the container of a job with several ranks."""

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
    """Joins the job that this process was started for, and returns its container.

    A process that was not started by a launcher gets a container with one rank. Closing the container
    leaves the job.

    Args:
        collective: backend for exchanges between ranks: ``mpi`` under mpiexec, ``torch`` under torchrun
            if sparring-torch is installed, or the backend of another plugin. ``auto`` selects ``mpi``
            under mpiexec.
        rendezvous: backend by which ranks find each other. ``auto`` selects it by the environment
            variables of the launcher.
        deadline_seconds: maximum duration of one exchange.
        plan: sharding of the tables; see `sparring.StepContainer`.
        **options: options of the collective.

    Raises:
        PluginError: no plugin provides the backend, or the backend cannot run here.
        InvalidArgumentError: the backend does not accept the options, or the environment variables are
            inconsistent.
        DeadlineError: some ranks did not join in time.

    Examples:
        >>> from sparring import TableConfig
        >>> from sparring_jax import Tables, join_job
        >>> with join_job() as container:
        ...     tables = Tables([TableConfig("items", dim=4)], container=container)
        ...     container.collective.world_size
        1
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
