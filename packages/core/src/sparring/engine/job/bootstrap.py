"""Job bootstrap: a process finds and joins the other ranks of its job.

``auto`` looks at what started the process. Nothing did: a world of one. torchrun did: rendezvous
``environment``, and the collective of the framework. mpiexec did: ``environment`` and ``mpi``. So
one configuration serves one process and many.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.rendezvous import Membership, Rendezvous
from sparring.errors import PluginError
from sparring.plugins.option_checks import validate_options
from sparring.plugins.registry import PluginManager
from sparring.rendezvous.environment import find_launcher

__all__ = ["AUTO", "Backends", "Choice", "Job", "join_job", "resolve_backends"]

AUTO = "auto"


class Choice(Protocol):
    """A backend and its options, as a section of a configuration has them."""

    @property
    def backend(self) -> str: ...

    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Job:
    """A rank's connection to the others. A context manager that leaves at its end."""

    membership: Membership
    rendezvous: Rendezvous
    collective: Collective

    def close(self) -> None:
        """Leaves. Ranks that still wait for this one are told."""
        self.collective.close()
        self.rendezvous.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Backends:
    """The backends that ``auto`` stands for."""

    rendezvous: str
    collective: str


def resolve_backends(
    rendezvous: str,
    collective: str,
    *,
    framework: str,
    variables: Mapping[str, str] | None = None,
) -> Backends:
    """The backends of this process.

    Args:
        rendezvous: a name, or ``auto``.
        collective: a name, or ``auto``.
        framework: whose collective, of the same name, ranks of torchrun use; it may have none.
        variables: the environment; None means this process's.
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
) -> Job:
    """Meets the other ranks and connects to them. All ranks call it.

    Args:
        rendezvous: where ranks meet.
        collective: how they exchange buffers.
        framework: as in `resolve_backends`.
        deadline_seconds: the longest that one exchange may take.
        plugin_manager: where backends are looked up.

    Raises:
        PluginError: a backend that no plugin offers, or that cannot run here.
        InvalidArgumentError: options that it does not take; an environment that makes no sense.
        DeadlineError: not all ranks came.
    """
    names = resolve_backends(rendezvous.backend, collective.backend, framework=framework)
    meeting = plugin_manager.rendezvous(names.rendezvous)
    met = meeting.factory(validate_options("rendezvous", meeting, dict(rendezvous.options)))
    membership = met.membership()
    try:
        group = plugin_manager.collective(names.collective)
    except PluginError as error:
        if collective.backend != AUTO or names.collective != framework:
            raise
        raise PluginError(
            f"these ranks were not started by mpiexec, so they use the collective of {framework!r}, and "
            f"there is none: {error}; start them with mpiexec, or name a collective that is installed"
        ) from error
    joined = group.factory(
        membership,
        validate_options("collective", group, dict(collective.options)),
        deadline_seconds,
    )
    return Job(membership, met, joined)
