"""The same configuration works with every launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sparring.engine.job.bootstrap import join_job, resolve_backends
from sparring.errors import InvalidArgumentError, PluginError
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
