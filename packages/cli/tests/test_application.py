"""The command line: commands of core and of plugins, and the handling of their errors."""

from __future__ import annotations

import sys

import pytest

from sparring_cli import application
from sparring_testing.fixtures.runs import RunCommand
from sparring_testing.processes.plugin_site import Site, storage_plugin

FRAMEWORK = """
    from sparring.contracts import FrameworkDescriptor, hookimpl

    @hookimpl
    def sparring_register_framework():
        return [FrameworkDescriptor(name="acme", api_version=(1, 0), module="acme")]
"""


@pytest.fixture
def run(site: Site, run_sparring: RunCommand) -> RunCommand:
    site.install("acme-frame", FRAMEWORK)
    return run_sparring


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["plugins", "more"]])
def test_wrong_usage_ends_with_2(run: RunCommand, arguments: list[str]) -> None:
    assert run(*arguments).code == 2


def test_a_command_of_a_package_that_is_not_installed_names_its_extra(
    run: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"nowhere": ("absent", "plugins"), "cli": ("broken",)}
    monkeypatch.setattr(application, "OTHER_COMMANDS", others)
    ending = run("absent", "--port", "1")
    assert ending.code == 2
    assert "run: pip install 'sparring[nowhere]'" in " ".join(ending.err.split())
    assert run("plugins").code == 0
    # Its package is installed, but a module of it cannot be imported.
    assert "No such command 'broken'" in run("broken").err


@pytest.mark.parametrize("command", ["plugins", "doctor", "convert", "inspect"])
def test_every_command_has_help(run: RunCommand, command: str) -> None:
    ending = run(command, "--help")
    assert ending.code == 0
    assert "Usage: sparring " + command in ending.out


def test_a_failing_command_does_not_hide_the_others(site: Site, run: RunCommand) -> None:
    site.install("greeter", COMMAND.replace("def register(app):", "def register(app, more):"))
    ending = run("greet")
    assert ending.code != 0
    assert "command 'greet' is not available: TypeError" in ending.err
    ending = run("--help")
    assert (ending.code, ending.err) == (0, "")
    assert "greet" in ending.out
    assert "plugins" in ending.out
    ending = run("plugins")
    assert (ending.code, ending.err) == (0, ""), "the command registered another command"


def test_plugins_lists_descriptors_rejections_and_conflicts(site: Site, run: RunCommand) -> None:
    site.install("broken-store", "import a_client_that_nobody_has", version="0.3")
    site.install("one-store", storage_plugin("twin"))
    site.install("two-store", storage_plugin("twin"))
    ending = run("plugins")
    assert ending.code == 0
    assert "acme-frame 1.0" in ending.out
    assert "rejected: broken_store of broken-store 0.3: ModuleNotFoundError" in ending.out
    assert "conflict: storage 'twin'" in ending.out
    listed = run("plugins", "--json").last_json
    assert ("framework", "acme") in {(each["kind"], each["name"]) for each in listed["registered"]}
    assert "broken_store" in {each["plugin"] for each in listed["rejected"]}
    assert listed["conflicts"][0]["distributions"] == ["one-store", "two-store"]


def test_doctor_reports_versions_machine_and_plugins(run: RunCommand) -> None:
    found = run("doctor", "--json").last_json
    assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["versions"]["numpy"]
    assert found["machine"]["usable_cores"] >= 1
    assert found["machine"]["memory_bytes"] >= found["machine"]["available_bytes"] > 0
    assert "acme" in {each["name"] for each in found["plugins"]["registered"]}
    assert bool(found["gpus"]["devices"]) != bool(found["gpus"]["reason"])
    assert found["lookup_server"] is None or found["lookup_server"].startswith(
        ("native", "python, ")
    )
    text = run("doctor").out
    for part in ("versions", "native library", "SIMD", "machine", "plugins", "GiB available"):
        assert part in text
    for gpu in found["gpus"]["devices"]:
        assert gpu["name"] in text
    assert "GPUs" in text
    if found["gpus"]["reason"]:
        assert " ".join(found["gpus"]["reason"].split()[:6]) in text


def test_doctor_reports_backends_that_cannot_run_here(site: Site, run: RunCommand) -> None:
    source = storage_plugin("flash").replace(
        "options=MemoryOptions,", "options=MemoryOptions, unavailable=lambda: 1 / 0,"
    )
    site.install("flash-store", source)
    ending = run("doctor")
    assert ending.code == 0
    assert "cannot run here: storage flash: ZeroDivisionError" in ending.out


def test_version(run: RunCommand) -> None:
    ending = run("--version")
    assert ending.code == 0
    assert ending.out.startswith("sparring 0.")


COMMAND = """
    import typer
    from sparring.contracts import CommandDescriptor, hookimpl

    def register(app):
        @app.command("greet")
        def greet(context: typer.Context) -> None:
            "Say hello."
            print("hello from", context.obj.plugin_manager.storage("memory").name)

    @hookimpl
    def sparring_register_commands():
        return [
            CommandDescriptor(
                name="greet",
                group="Operate",
                api_version=(1, 0),
                summary="Says hello.",
                register=register,
            )
        ]
"""


def test_a_plugin_adds_a_command(site: Site, run: RunCommand) -> None:
    site.install("greeter", COMMAND)
    assert "Says hello." in run("--help").out
    assert run("greet").out == "hello from memory\n"


def test_a_command_of_two_plugins_is_rejected_when_it_is_used(site: Site, run: RunCommand) -> None:
    site.install("greeter", COMMAND)
    site.install("other-greeter", COMMAND)
    assert run("plugins").code == 0
    ending = run("greet")
    assert ending.code == 2
    assert "greeter 1.0 and other-greeter 1.0" in ending.err
