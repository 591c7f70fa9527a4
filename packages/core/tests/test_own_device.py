"""``device: cuda`` means the GPU of the rank that says it; nothing here needs one."""

from __future__ import annotations

import pytest

from sparring import StepContainer, TableConfig
from sparring.collective import LocalGroup
from sparring.declared_table import storage_device
from sparring.errors import InvalidArgumentError
from sparring.rendezvous import Membership, SingleRendezvous
from sparring.rendezvous.shard_map import ShardMap
from sparring.step import StorageChoice


class _Rank(SingleRendezvous):
    def __init__(self, membership: Membership) -> None:
        super().__init__()
        self._membership = membership

    def membership(self) -> Membership:
        return self._membership

    def shard_map(self) -> ShardMap:
        return ShardMap.balanced(self._membership.world_size)


def _container(membership: Membership) -> StepContainer:
    collective = LocalGroup(membership.world_size).join(membership.rank)
    return StepContainer(collective=collective, rendezvous=_Rank(membership))


def _declared(container: StepContainer, storage: StorageChoice) -> StorageChoice:
    container.declare(TableConfig("items", 4), storage)
    choice = container.entry("items").choice
    assert choice is not None
    return choice


@pytest.mark.parametrize(
    ("membership", "device"),
    [
        (Membership(3, 4, local_rank=1), "cuda:1"),
        (Membership(3, 4, local_rank=1, device="cuda:2"), "cuda:2"),
        (Membership(0, 1, local_rank=0, device="cuda:2"), "cuda:2"),
        (Membership(0, 1), "cuda"),
    ],
)
def test_each_rank_has_a_gpu_of_its_own(membership: Membership, device: str) -> None:
    choice = _declared(_container(membership), StorageChoice("hkv", {"device": "cuda"}))
    assert choice.options["device"] == device
    assert storage_device(choice) == device


def test_a_gpu_that_is_named_stays() -> None:
    container = _container(Membership(3, 4, local_rank=1))
    choice = _declared(container, StorageChoice("hkv", {"device": "cuda:0", "capacity": 9}))
    assert choice.options == {"device": "cuda:0", "capacity": 9}


def test_tiers_lie_on_the_rank_s_own_gpu_too() -> None:
    tiers = [{"backend": "hkv", "options": {"device": "cuda"}}, "hkv"]
    container = _container(Membership(3, 4, local_rank=1))
    choice = _declared(container, StorageChoice("tiered", {"tiers": tiers}))
    assert choice.options["tiers"][0]["options"]["device"] == "cuda:1"
    assert storage_device(choice) == "cuda:1"


def test_declaring_again_is_no_other_storage() -> None:
    container = _container(Membership(3, 4, local_rank=1))
    first = _declared(container, StorageChoice("hkv", {"device": "cuda"}))
    assert _declared(container, StorageChoice("hkv", {"device": "cuda"})) == first
    # The same GPU by its number is the same place, another is another.
    assert _declared(container, StorageChoice("hkv", {"device": "cuda:1"})) == first
    with pytest.raises(InvalidArgumentError, match="items"):
        container.declare(TableConfig("items", 4), StorageChoice("hkv", {"device": "cuda:0"}))
    assert container.entry("items").choice == first


def test_what_a_backend_calls_device_may_be_something_else() -> None:
    assert storage_device(StorageChoice("other", {"device": "/dev/sda"})) == "cpu"
    assert storage_device(StorageChoice("hkv", {"device": "emulated"})) == "emulated"
    assert storage_device(None) == "cpu"
