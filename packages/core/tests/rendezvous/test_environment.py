"""Membership from the variables of launchers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.plugins.option_checks import validate_options
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.environment import (
    EnvironmentOptions,
    EnvironmentRendezvous,
    read_membership,
)
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
MPICH = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.mark.parametrize("variables", [TORCHRUN, MPICH, OPEN_MPI, TORCHRUN | MPICH])
def test_the_variables_of_each_launcher_are_read(variables: dict[str, str]) -> None:
    expected = Membership(rank=5, world_size=8, local_rank=1, device="cpu")
    assert read_membership(variables, EnvironmentOptions()) == expected


def test_the_device_is_the_gpu_of_the_local_rank_if_requested() -> None:
    assert read_membership(MPICH, EnvironmentOptions(device="cuda")).device == "cuda:1"


def test_launchers_that_disagree_are_rejected_unless_one_is_chosen() -> None:
    both = {**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "2"}
    with pytest.raises(
        InvalidArgumentError, match=r"rank 5 of 8, but the variables of mpich rank 0 of 2"
    ):
        read_membership(both, EnvironmentOptions())
    assert read_membership(both, EnvironmentOptions(launcher="mpich")).world_size == 2


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "RANK, PMI_RANK, OMPI_COMM_WORLD_RANK"),
        ({"RANK": "0"}, "WORLD_SIZE of torchrun must be a whole number, found nothing"),
        ({**TORCHRUN, "LOCAL_RANK": "-1"}, "LOCAL_RANK .* found '-1'"),
        ({**TORCHRUN, "RANK": "8"}, "rank 8 of 8"),
    ],
)
def test_invalid_variables_are_rejected(variables: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        read_membership(variables, EnvironmentOptions())


def open_environment(monkeypatch: pytest.MonkeyPatch, world_size: int) -> EnvironmentRendezvous:
    for name in {**MPICH, **OPEN_MPI}:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": str(world_size), "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    return EnvironmentRendezvous(EnvironmentOptions())


def test_one_rank_has_a_store_and_several_get_an_error_that_names_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = open_environment(monkeypatch, 1)
    alone.set("run", b"abc")
    assert alone.get("run", 0.0) == b"abc"
    together = open_environment(monkeypatch, 2)
    assert together.shard_map() == ShardMap.balanced(2)
    for call in (lambda: together.set("run", b""), lambda: together.get("run", 1.0)):
        with pytest.raises(UnsupportedError, match="choose the rendezvous 'torch'"):
            call()


@needs_mpi
def test_mpiexec_and_the_plugin_manager_are_enough_to_join() -> None:
    code = """
import json
import numpy as np
from sparring import make_plugin_manager
from sparring.contracts import validate_options

manager = make_plugin_manager()
place, group = manager.rendezvous("environment"), manager.collective("mpi")
rendezvous = place.factory(validate_options("rendezvous", place, {}))
mine = rendezvous.membership()
with group.factory(mine, validate_options("collective", group, {}), 20.0) as collective:
    ranks = collective.all_gather(np.array([mine.rank, mine.local_rank, mine.world_size]))
    if mine.rank == 0:
        print(json.dumps([rank.tolist() for rank in ranks]))
"""
    ran = subprocess.run(
        [MPIEXEC, "-n", "2", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[0, 0, 2], [1, 1, 2]]


def test_its_options_are_listed() -> None:
    descriptor = make_plugin_manager(entry_points=False).rendezvous("environment")
    with pytest.raises(InvalidArgumentError, match="known options: device, launcher"):
        validate_options("rendezvous", descriptor, {"gpu": 1})
