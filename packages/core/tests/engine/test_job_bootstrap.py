"""The same configuration works with every launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective, LocalGroup
from sparring.contracts.descriptors import API_VERSION, CollectiveDescriptor
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.ranks.collective import Array
from sparring.engine.job.bootstrap import join_job, resolve_backends
from sparring.errors import InvalidArgumentError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import PluginManager, make_plugin_manager
from sparring.runtime import pool as execution

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MPICH = {"PMI_RANK": "0", "PMI_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
SCHEDULER = {"RANK": "3"}  # somebody's own variable, of no launcher


@dataclass(frozen=True)
class Named:
    """A backend as in a configuration."""

    backend: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("variables", "rendezvous", "collective"),
    [
        ({}, "single", "local"),
        (SCHEDULER, "single", "local"),
        (TORCHRUN, "environment", "torch"),
        (MPICH, "environment", "mpi"),
        (OPEN_MPI, "environment", "mpi"),
    ],
)
def test_auto_selects_the_launcher_of_the_process(
    variables: dict[str, str], rendezvous: str, collective: str
) -> None:
    found = resolve_backends("auto", "auto", framework="torch", variables=variables)
    assert (found.rendezvous, found.collective) == (rendezvous, collective)


def test_configured_backends_are_used_unchanged() -> None:
    found = resolve_backends("torch", "auto", framework="torch", variables=MPICH)
    assert (found.rendezvous, found.collective) == ("torch", "torch")
    found = resolve_backends("auto", "torch", framework="torch", variables=MPICH)
    assert (found.rendezvous, found.collective) == ("environment", "torch")
    found = resolve_backends("single", "auto", framework="torch", variables=TORCHRUN)
    assert (found.rendezvous, found.collective) == ("single", "local")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, *MPICH, *OPEN_MPI):
        monkeypatch.delenv(name, raising=False)


def join(
    rendezvous: Named, collective: Named, manager: PluginManager | None = None
) -> tuple[int, int, int]:
    with join_job(
        rendezvous,
        collective,
        framework="torch",
        deadline_seconds=5.0,
        plugin_manager=manager or make_plugin_manager(),
    ) as job:
        assert job.rendezvous.shard_map().world_size == job.collective.world_size
        membership = job.membership
        return membership.rank, membership.world_size, membership.local_world_size


def test_a_single_process_is_a_world_of_one() -> None:
    assert join(Named(), Named()) == (0, 1, 1)


def test_an_unknown_backend_is_rejected_by_name() -> None:
    with pytest.raises(PluginError, match="carrier_pigeon"):
        join(Named(), Named(backend="carrier_pigeon"))


def test_ranks_of_mpiexec_get_the_install_command_of_the_collective(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in MPICH.items():
        monkeypatch.setenv(name, value)
    for backend in ("auto", "mpi"):
        with pytest.raises(PluginError, match=r'^collective .mpi.*pip install "sparring\[mpi\]"'):
            join(Named(), Named(backend=backend), make_plugin_manager(entry_points=False))


def test_unknown_options_of_a_backend_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown option 'devise'"):
        join(Named(options={"devise": "cuda"}), Named())


class FirstOfTwo(LocalCollective):
    """Rank 0 of two ranks, of which the other one has the plugin that `other` names."""

    other = "within_a_host"

    def all_gather(self, buffer: Any) -> list[Array]:
        return [buffer, np.frombuffer(self.other.encode(), np.uint8)]


class WithinAHost(LocalCollective):
    """A collective that extends another one."""


class CollectivePlugin:
    """A collective of a launcher, and one that connects the ranks of a host."""

    unavailable: str | None = None

    @hookimpl
    def sparring_register_collective(self) -> list[CollectiveDescriptor]:
        group = LocalGroup(2)
        return [
            CollectiveDescriptor(
                name="between_hosts",
                api_version=API_VERSION,
                summary="",
                factory=lambda membership, options, deadline: FirstOfTwo(group, 0),
            ),
            CollectiveDescriptor(
                name="within_a_host",
                api_version=API_VERSION,
                summary="",
                factory=lambda membership, options, deadline: WithinAHost(group, 0),
                local_factory=lambda collective: WithinAHost(group, collective.rank),
                unavailable=lambda: self.unavailable,
            ),
        ]


@pytest.mark.parametrize(
    ("collective", "other", "unavailable", "kind"),
    [
        ("auto", "within_a_host", None, WithinAHost),
        ("auto", "", None, FirstOfTwo),
        ("auto", "within_a_host", "no memory", FirstOfTwo),
        ("between_hosts", "within_a_host", None, FirstOfTwo),
    ],
    ids=["auto", "missing on a rank", "unavailable", "configured"],
)
def test_auto_connects_the_ranks_of_a_host_if_all_ranks_can(
    monkeypatch: pytest.MonkeyPatch,
    collective: str,
    other: str,
    unavailable: str | None,
    kind: type[LocalCollective],
) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(FirstOfTwo, "other", other)
    monkeypatch.setattr(CollectivePlugin, "unavailable", unavailable)
    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("two", "two", "1.0", CollectivePlugin))
    with join_job(
        Named(),
        Named(collective),
        framework="torch",
        deadline_seconds=5.0,
        plugin_manager=manager,
        default_collective="between_hosts",
    ) as job:
        assert type(job.collective) is kind


def test_ranks_of_one_machine_share_its_cores() -> None:
    before = execution.num_threads()
    try:
        execution.configure_pool()
        all_cores = execution.num_threads()
        execution.configure_pool(sharing=2)
        assert execution.num_threads() == max(1, all_cores // 2)
        execution.configure_pool(sharing=10**6)
        assert execution.num_threads() == 1
        execution.configure_pool(3, sharing=2)
        assert execution.num_threads() == 3
    finally:
        execution.configure_pool(before)
