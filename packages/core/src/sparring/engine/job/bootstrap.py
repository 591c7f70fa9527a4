"""Job bootstrap: a process finds and joins the other ranks of its job.

``auto`` depends on the launcher. Without a launcher, the process is the only rank. With torchrun, it
uses the rendezvous ``environment`` and the collective of the framework; with mpiexec, ``environment``
and ``mpi``. Therefore one configuration works for one process and for many. If an installed collective
connects the ranks of one host, ``auto`` uses it in addition.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sparring.contracts.descriptors import CollectiveDescriptor
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
from sparring.errors import PluginError
from sparring.plugins.option_checks import validate_options
from sparring.plugins.registry import PluginManager
from sparring.rendezvous.environment import find_launcher

__all__ = ["AUTO", "Backends", "Choice", "Job", "join_job", "resolve_backends"]

AUTO = "auto"


class Choice(Protocol):
    """A backend and its options, as in a section of a configuration."""

    @property
    def backend(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A rank's connection to the other ranks; a context manager that closes it."""

    membership: Membership
    rendezvous: Rendezvous
    collective: Collective

    def close(self) -> None:
        """Leaves the job. Ranks that still wait for this rank are notified."""
        self.collective.close()
        self.rendezvous.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Backends:
    """Names of the rendezvous and the collective, with ``auto`` resolved."""

    rendezvous: str
    collective: str


def resolve_backends(
    rendezvous: str,
    collective: str,
    *,
    framework: str,
    variables: Mapping[str, str] | None = None,
) -> Backends:
    """Returns the backends of this process.

    Args:
        rendezvous: name of the rendezvous, or ``auto``.
        collective: name of the collective, or ``auto``.
        framework: name of the framework, whose collective ranks of torchrun use, if it has one.
        variables: environment variables; None uses the environment of this process.
    """
    launcher = find_launcher(os.environ if variables is None else variables)
    if rendezvous == AUTO:
        rendezvous = "single" if launcher is None else "environment"
    if collective == AUTO:
        if rendezvous == "single":
            collective = "local"
        elif rendezvous == "environment" and launcher in ("mpich", "openmpi"):
            collective = "mpi"
        else:
            collective = framework
    return Backends(rendezvous, collective)


def join_job(
    rendezvous: Choice,
    collective: Choice,
    *,
    framework: str,
    deadline_seconds: float,
    plugin_manager: PluginManager,
    default_collective: str | None = None,
) -> Job:
    """Finds the other ranks and connects to them. All ranks must call it.

    Args:
        rendezvous: rendezvous of the ranks, any object with the attributes `backend` and `options`.
        collective: collective that exchanges buffers, such an object too.
        framework: as for `resolve_backends`.
        deadline_seconds: deadline of each exchange.
        plugin_manager: finds backends.
        default_collective: the collective that ``auto`` selects. By default, it depends on the launcher.

    Raises:
        PluginError: no plugin provides a backend, or a backend cannot run here.
        InvalidArgumentError: unknown options, or inconsistent environment variables.
        DeadlineError: not all ranks joined in time.

    Examples:
        >>> from sparring import StorageChoice, join_job, make_plugin_manager
        >>> with join_job(
        ...     StorageChoice("single"), StorageChoice("local"), framework="torch",
        ...     deadline_seconds=60, plugin_manager=make_plugin_manager(entry_points=False),
        ... ) as job:
        ...     job.membership.rank, job.collective.world_size
        (0, 1)
    """
    chosen = collective.backend
    if chosen == AUTO and default_collective is not None:
        chosen = default_collective
    names = resolve_backends(rendezvous.backend, chosen, framework=framework)
    meeting = plugin_manager.rendezvous(names.rendezvous)
    met = meeting.factory(validate_options("rendezvous", meeting, dict(rendezvous.options)))
    membership = met.membership()
    try:
        group = plugin_manager.collective(names.collective)
    except PluginError as error:
        if collective.backend != AUTO or names.collective != framework:
            raise
        raise PluginError(
            f"these ranks were not started by mpiexec, so they use the collective of {framework!r}, but "
            f"there is none: {error}; start them with mpiexec, or specify an installed collective"
        ) from error
    joined = group.factory(
        membership,
        validate_options("collective", group, dict(collective.options)),
        deadline_seconds,
    )
    if collective.backend == AUTO:
        joined = _connect_local_ranks(joined, plugin_manager)
    return Job(membership, met, joined)


def _connect_local_ranks(collective: Collective, plugin_manager: PluginManager) -> Collective:
    """Returns a collective that connects the ranks of one host in a faster way, if all ranks have a
    plugin for it; otherwise `collective`. All ranks must call it.

    Args:
        collective: connection to all ranks; closed if an error is raised.
        plugin_manager: finds plugins.
    """
    if collective.world_size == 1:
        return collective
    found = None
    for each in plugin_manager.descriptors():
        descriptor = each.descriptor
        if (
            isinstance(descriptor, CollectiveDescriptor)
            and descriptor.local_factory is not None
            and (descriptor.unavailable is None or descriptor.unavailable() is None)
        ):
            found = descriptor
            break
    try:
        name = "" if found is None else found.name
        names = collective.all_gather(np.frombuffer(name.encode(), np.uint8))
    except BaseException:
        collective.close()
        raise
    if found is None or any(each.tobytes() != name.encode() for each in names):
        return collective
    assert found.local_factory is not None
    return found.local_factory(collective)
