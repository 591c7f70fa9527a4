"""The plugin manager: names, broken plugins, versions and name conflicts."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparring.contracts.descriptors import API_VERSION, Descriptor, StorageDescriptor
from sparring.contracts.device.kernels import ArraySource
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.options import NoOptions
from sparring.contracts.ranks.rendezvous import Membership
from sparring.errors import InvalidArgumentError, PluginError, VersionError
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registered import KINDS
from sparring.plugins.registry import DISABLE_VARIABLE, PluginManager, make_plugin_manager
from sparring_testing.processes.plugin_site import Site, storage_plugin


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path / "site", monkeypatch)


def reason_of(manager: PluginManager, plugin: str) -> str:
    reasons = [each.reason for each in manager.load_errors() if each.plugin == plugin]
    assert len(reasons) == 1, f"{plugin}: expected one load error, found {reasons}"
    return reasons[0]


def test_core_registers_its_own_parts_through_the_hooks() -> None:
    manager = make_plugin_manager(entry_points=False)
    assert manager.storage("memory").name == "memory"
    assert manager.collective("local").name == "local"
    assert manager.rendezvous("single").name == "single"
    assert manager.kernels("cpu").device == "cpu"
    assert {offer.distribution for offer in manager.descriptors()} == {"sparring"}
    assert not manager.load_errors()


def test_the_factories_of_core_open_working_parts() -> None:
    manager = make_plugin_manager(entry_points=False)
    rendezvous = manager.rendezvous("single").factory(NoOptions())
    membership = rendezvous.membership()
    collective = manager.collective("local").factory(membership, NoOptions(), 7.0)
    assert (collective.rank, collective.world_size, collective.deadline_seconds) == (0, 1, 7.0)
    kernels = manager.kernels("cpu").factory(ArraySource(empty=np.empty, stream=lambda: 0))
    assert kernels.dedup(np.array([4, 4])).keys.tolist() == [4]
    collective.close()
    rendezvous.close()


def test_the_local_collective_does_not_connect_processes() -> None:
    local = make_plugin_manager(entry_points=False).collective("local")
    with pytest.raises(InvalidArgumentError, match="found 2 ranks"):
        local.factory(Membership(rank=0, world_size=2), NoOptions(), 7.0)


def test_nothing_is_loaded_at_import() -> None:
    program = (
        "import sys, sparring.plugins.registry\n"
        "heavy = {'torch', 'tensorflow', 'typer', 'ruamel.yaml', 'sparring_cli'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_installed_plugin_is_found_by_its_registered_name(site: Site) -> None:
    site.install("acme-store", storage_plugin("acme"), version="2.5")
    manager = make_plugin_manager()
    assert manager.storage("acme").summary == "A storage for a test."
    (offer,) = [each for each in manager.descriptors() if each.name == "acme"]
    assert (offer.kind, offer.distribution, offer.version) == ("storage", "acme-store", "2.5")


def test_entry_points_can_be_left_out(site: Site) -> None:
    site.install("acme-store", storage_plugin("acme"))
    with pytest.raises(PluginError, match="'acme' is unknown"):
        make_plugin_manager(entry_points=False).storage("acme")


def test_each_manager_searches_again(site: Site) -> None:
    before = make_plugin_manager()
    site.install("acme-store", storage_plugin("acme"))
    with pytest.raises(PluginError):
        before.storage("acme")
    assert make_plugin_manager().storage("acme").name == "acme"


BROKEN = {
    "import": ("import a_client_library_that_nobody_has", "a_client_library_that_nobody_has"),
    "syntax": ("def (:", "SyntaxError"),
    "exits": ("import sys; sys.exit(3)", "SystemExit: 3"),
    "hook arguments": (
        """
        from sparring.contracts import hookimpl

        @hookimpl
        def sparring_register_storage(surprise):
            return []
        """,
        "surprise",
    ),
    "unknown hook": (
        """
        from sparring.contracts import hookimpl

        @hookimpl
        def sparring_register_storge():
            return []
        """,
        "sparring_register_storge",
    ),
    "hook raises": (
        """
        from sparring.contracts import hookimpl

        @hookimpl
        def sparring_register_storage():
            raise RuntimeError("no such device")
        """,
        "RuntimeError: no such device",
    ),
    "returns no list": (
        """
        from sparring.contracts import hookimpl

        @hookimpl
        def sparring_register_storage():
            return "acme"
        """,
        "must return a list of StorageDescriptor, found str",
    ),
    "returns something else": (
        """
        from sparring.contracts import hookimpl

        @hookimpl
        def sparring_register_storage():
            return [{"name": "acme"}]
        """,
        "found an item of type dict",
    ),
    "descriptor of another kind": (
        """
        from sparring.contracts import RendezvousDescriptor, hookimpl

        @hookimpl
        def sparring_register_storage():
            return [RendezvousDescriptor(name="acme", api_version=(1, 0), factory=print)]
        """,
        "found an item of type RendezvousDescriptor",
    ),
    "bad name": (storage_plugin("a me"), "found 'a me'"),
    "bad version": (storage_plugin("acme", api_version=1), "found 1"),  # type: ignore[arg-type]
    "bad factory": (
        storage_plugin("acme").replace(
            "lambda table, options: MemoryStorage(table, options)", "'open'"
        ),
        "factory must be callable",
    ),
    "bad options": (
        storage_plugin("acme").replace("options=MemoryOptions", "options=dict"),
        "options must be a class derived from sparring.contracts.Options",
    ),
    "one name twice": (
        storage_plugin("acme").replace("return [", "return 2 * ["),
        "registers storage 'acme' more than once",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_plugin_is_rejected_with_its_reason_without_affecting_others(
    site: Site, case: str
) -> None:
    source, reason = BROKEN[case]
    site.install("broken-store", source, plugin="broken_plugin", version="0.3")
    site.install("zebra-store", storage_plugin("zebra"))
    manager = make_plugin_manager()
    assert reason in reason_of(manager, "broken")
    assert manager.storage("zebra").name == "zebra"
    assert manager.storage("memory").name == "memory"
    with pytest.raises(PluginError) as caught:
        manager.storage("broken" if case in UNNAMED else "acme")
    assert reason in str(caught.value)
    assert "broken-store 0.3" in str(caught.value)


UNNAMED = {
    "import",
    "syntax",
    "exits",
    "hook arguments",
    "unknown hook",
    "hook raises",
    "returns no list",
    "returns something else",
    "bad name",
}
"""Cases in which only the name of the plugin itself is known."""


def test_a_damaged_entry_points_file_hides_no_other_plugin(site: Site) -> None:
    site.write_metadata("damaged-store", "1.0", "[sparring]\nthis is no entry point\n")
    site.install("zebra-store", storage_plugin("zebra"))
    manager = make_plugin_manager()
    assert manager.storage("zebra").name == "zebra"
    assert "entry_points.txt" in reason_of(manager, "damaged-store")


@pytest.mark.parametrize(
    ("version", "remedy"),
    [
        ((API_VERSION[0] + 1, 0), "upgrade sparring"),
        ((API_VERSION[0], API_VERSION[1] + 1), "upgrade sparring"),
        ((API_VERSION[0] - 1, 7), "upgrade acme-store"),
    ],
)
def test_another_contract_version_is_rejected_naming_both_sides(
    site: Site, version: tuple[int, int], remedy: str
) -> None:
    site.install("acme-store", storage_plugin("acme", api_version=version), version="9.1")
    with pytest.raises(VersionError) as caught:
        make_plugin_manager().storage("acme")
    message = str(caught.value)
    for fact in (
        "acme-store 9.1",
        "sparring 0.",
        f"version {version[0]}.{version[1]} ",
        f"version {API_VERSION[0]}.{API_VERSION[1]}",
        remedy,
    ):
        assert fact in message


def test_two_plugins_of_one_name_are_an_error_naming_both_distributions(site: Site) -> None:
    site.install("acme-store", storage_plugin("acme"), version="1.1")
    site.install("other-store", storage_plugin("acme"), version="2.2")
    manager = make_plugin_manager()
    with pytest.raises(PluginError, match=r"acme-store 1\.1 and other-store 2\.2") as caught:
        manager.storage("acme")
    assert caught.value.distributions == ("acme-store", "other-store")
    (conflict,) = manager.conflicts()
    assert (conflict.kind, conflict.name) == ("storage", "acme")
    assert "acme" not in {offer.name for offer in manager.descriptors()}


def test_a_plugin_cannot_silently_replace_a_part_of_core(site: Site) -> None:
    site.install("sly-store", storage_plugin("memory"))
    with pytest.raises(PluginError, match=r"sly-store 1\.0 and sparring 0\.\S+"):
        make_plugin_manager().storage("memory")


def test_one_name_may_be_registered_in_two_kinds(site: Site) -> None:
    site.install("acme-store", storage_plugin("local"))
    manager = make_plugin_manager()
    assert manager.storage("local").name == "local"
    assert manager.collective("local").name == "local"


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("storage", "memori", "did you mean 'memory'"),
        ("storage", "hkw", 'pip install "sparring[hkv]"'),
        ("storage", "tiered", 'pip install "sparring[tiered]"'),
        ("storage", "nothing like it", "(installed: "),
        ("collective", "locl", "did you mean 'local'"),
        ("rendezvous", "singel", "did you mean 'single'"),
        ("kernels", "cpus", "did you mean 'cpu'"),
        ("framework", "tensorflow", 'pip install "sparring[tensorflow]"'),
        ("framework", "torhc", 'pip install "sparring[torch]"'),
    ],
)
def test_an_unknown_name_gets_a_suggestion_or_an_install_command(
    kind: str, name: str, expected: str
) -> None:
    manager = make_plugin_manager(entry_points=False)
    with pytest.raises(PluginError) as caught:
        getattr(manager, kind)(name)
    assert expected in str(caught.value)
    assert repr(name) in str(caught.value)


def test_no_install_command_is_shown_for_installed_plugins() -> None:
    class Plugin:
        @hookimpl
        def sparring_register_storage(self) -> list[StorageDescriptor]:
            memory = make_plugin_manager(entry_points=False).storage("memory")
            return [replace(memory, name="redis")]

    manager = make_plugin_manager(entry_points=False)
    manager.load(PluginSource("redis", "some-redis", "1.0", Plugin))
    assert manager.storage("redis").name == "redis"
    with pytest.raises(PluginError, match="did you mean 'redis'") as caught:
        manager.storage("rediss")
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize("listed", ["acme_store", "acme-store", "*", "x, acme_store"])
def test_plugins_can_be_disabled(site: Site, monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    site.install("acme-store", storage_plugin("acme"))
    monkeypatch.setenv(DISABLE_VARIABLE, listed)
    manager = make_plugin_manager()
    assert DISABLE_VARIABLE in reason_of(manager, "acme_store")
    assert manager.storage("memory").name == "memory"
    with pytest.raises(PluginError):
        manager.storage("acme")


def test_every_kind_has_its_hook() -> None:
    from sparring.contracts import hookspecs

    hooks = {name for name in vars(hookspecs) if name.startswith("sparring_register_")}
    assert hooks == {f"sparring_register_{kind}" for kind in KINDS}
    assert hookimpl.project_name == hookspecs.PROJECT


def test_the_reference_page_has_every_hook_with_its_exact_signature() -> None:
    from sparring.contracts import hookspecs

    page = (Path(__file__).parents[4] / "docs/reference/hooks.md").read_text()
    for name, hook in vars(hookspecs).items():
        if name.startswith("sparring_register_"):
            signature = str(inspect.signature(hook)).replace("'", "")
            description = " ".join((hook.__doc__ or "").split())
            assert f"| `{name}{signature}` | {description} |" in page, f"{name}{signature}"


def test_the_reference_page_has_every_field_of_every_descriptor() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/hooks.md").read_text()
    for kind, descriptor in KINDS.items():
        own = set(descriptor.__dataclass_fields__) - set(Descriptor.__dataclass_fields__)
        for name in own:
            assert f"| `{name}` | {kind} |" in page, f"{name} of {kind}"
    for name in Descriptor.__dataclass_fields__:
        assert f"| `{name}` | all |" in page, name
