"""``device: cuda`` means the GPU of the rank. These tests need no GPU."""

from __future__ import annotations

import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.descriptors import KernelsDescriptor
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice, find_storage_device
from sparring.errors import InvalidArgumentError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import make_plugin_manager
from sparring.rendezvous.environment import SingleRendezvous


class _Rank(SingleRendezvous):
    def __init__(self, membership: Membership) -> None:
        super().__init__()
        self._membership = membership

    def membership(self) -> Membership:
        return self._membership


class _Seeing:
    """A plugin that reports this number of GPUs."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.num_asked = 0

    @hookimpl
    def sparring_register_kernels(self) -> list[KernelsDescriptor]:
        def refuse(_arrays: object) -> KernelSet:
            raise AssertionError("no GPU was to be opened")

        return [
            KernelsDescriptor(
                name="cuda",
                api_version=(1, 0),
                summary="",
                device="cuda",
                factory=refuse,
                num_devices=self._num_devices,
            )
        ]

    def _num_devices(self) -> int:
        self.num_asked += 1
        return self._count


def _container(membership: Membership, seeing: _Seeing | None = None) -> StepContainer:
    collective = LocalGroup(membership.world_size).join(membership.rank)
    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("gpus", "some-gpus", "1.0", lambda: seeing or _Seeing(8)))
    return StepContainer(
        collective=collective, rendezvous=_Rank(membership), plugin_manager=manager
    )


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
def test_each_rank_has_a_separate_gpu(membership: Membership, device: str) -> None:
    choice = _declared(_container(membership), StorageChoice("hkv", {"device": "cuda"}))
    assert choice.options["device"] == device
    assert find_storage_device(choice) == device


@pytest.mark.parametrize(
    ("membership", "count", "device"),
    [
        (Membership(3, 4, local_rank=1), 1, "cuda:0"),
        (Membership(3, 4, local_rank=1, device="cuda:2"), 1, "cuda:0"),
        (Membership(0, 1, device="cuda:2"), 1, "cuda:0"),
        (Membership(3, 4, local_rank=0), 1, "cuda:0"),
        # Opening such a device raises the error.
        (Membership(3, 4, local_rank=3), 2, "cuda:3"),
        (Membership(3, 4, local_rank=3), 0, "cuda:3"),
    ],
)
def test_a_launcher_may_show_each_rank_only_its_own_gpu(
    membership: Membership, count: int, device: str
) -> None:
    container = _container(membership, _Seeing(count))
    choice = _declared(container, StorageChoice("hkv", {"device": "cuda"}))
    assert choice.options["device"] == device
    tiers = [{"backend": "hkv", "options": {"device": "cuda"}}, "hkv"]
    container.declare(TableConfig("stack", 4), StorageChoice("tiered", {"tiers": tiers}))
    assert find_storage_device(container.entry("stack").choice) == device


def test_gpus_are_counted_only_if_a_table_is_on_one() -> None:
    seeing = _Seeing(1)
    container = _container(Membership(3, 4, local_rank=1), seeing)
    _declared(container, StorageChoice("hkv", {"capacity": 9}))
    assert seeing.num_asked == 0
    for name in ("one", "other"):
        container.declare(TableConfig(name, 4), StorageChoice("hkv", {"device": "cuda"}))
    assert seeing.num_asked == 1


def test_an_explicit_gpu_is_not_changed() -> None:
    container = _container(Membership(3, 4, local_rank=1))
    choice = _declared(container, StorageChoice("hkv", {"device": "cuda:0", "capacity": 9}))
    assert choice.options == {"device": "cuda:0", "capacity": 9}


def test_tiers_are_on_the_rank_s_gpu_too() -> None:
    tiers = [{"backend": "hkv", "options": {"device": "cuda"}}, "hkv"]
    container = _container(Membership(3, 4, local_rank=1))
    choice = _declared(container, StorageChoice("tiered", {"tiers": tiers}))
    assert choice.options["tiers"][0]["options"]["device"] == "cuda:1"
    assert find_storage_device(choice) == "cuda:1"


def test_declaring_again_keeps_the_storage() -> None:
    container = _container(Membership(3, 4, local_rank=1))
    first = _declared(container, StorageChoice("hkv", {"device": "cuda"}))
    assert _declared(container, StorageChoice("hkv", {"device": "cuda"})) == first
    # The same GPU number is the same device, another number is another device.
    assert _declared(container, StorageChoice("hkv", {"device": "cuda:1"})) == first
    with pytest.raises(InvalidArgumentError, match="items"):
        container.declare(TableConfig("items", 4), StorageChoice("hkv", {"device": "cuda:0"}))
    assert container.entry("items").choice == first


def test_a_backend_may_use_the_option_device_otherwise() -> None:
    assert find_storage_device(StorageChoice("other", {"device": "/dev/sda"})) == "cpu"
    assert find_storage_device(StorageChoice("hkv", {"device": "emulated"})) == "emulated"
    assert find_storage_device(None) == "cpu"
