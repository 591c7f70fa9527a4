"""Exit codes and verbosity of all commands, with a command that raises."""

from __future__ import annotations

import logging
from typing import Annotated

import pytest
import typer

from sparring import errors
from sparring_cli import application, print_error, print_note, print_warning, progress_bar
from sparring_cli.application import main
from sparring_cli.registration import add_command

LOG = logging.getLogger("sparring.example")


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Adds the command ``fail``, which raises the elements of the returned list."""
    # Training on ranks that are threads of a test restores the level of another rank.
    logging.getLogger("sparring").setLevel(logging.NOTSET)
    raised: list[BaseException] = []
    original = application.make_application

    def fail() -> None:
        raise raised[0]

    def report(json: Annotated[bool, typer.Option("--json")] = False) -> None:
        LOG.debug("a detail")
        LOG.warning("a logged warning")
        print_note("a note")
        print_warning("a warning")
        print_error("an error")
        with progress_bar("progress", "rows", 10, as_json=json) as advance:
            advance(5)

    def make(manager: object, name: str | None) -> typer.Typer:
        made = original(manager, name)  # type: ignore[arg-type]
        add_command(made, "fail", fail, examples=["sparring fail"])
        add_command(made, "tell", report, examples=["sparring tell"])
        return made

    monkeypatch.setattr(application, "make_application", make)
    return raised


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StorageIOError("disk"), 1),
        (errors.SnapshotDamagedError("damaged"), 1),
        (errors.PeerFailure("peer"), 1),
        (errors.ConfigError("config"), 2),
        (errors.DataError("data"), 2),
        (errors.InvalidArgumentError("argument"), 2),
        (errors.PluginError("plugin"), 2),
        (errors.SnapshotNotFoundError("snapshot"), 3),
        (errors.UnknownTableError("table"), 3),
        (errors.NotFoundError("key"), 3),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else str(each),
)
def test_an_error_determines_the_exit_code(
    raising: list[BaseException],
    error: BaseException,
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raising.append(error)
    assert main(["fail"]) == code
    assert (str(error) or "stopped by Ctrl-C") in capsys.readouterr().err


def test_a_wrong_command_is_a_usage_error() -> None:
    assert main(["nonsense"]) == 2
    assert main(["--quiet", "--verbose", "plugins"]) == 2


@pytest.mark.parametrize(
    ("options", "shown", "absent"),
    [
        ([], ["a note", "warning: a warning", "an error"], ["a detail"]),
        (["-q"], ["an error"], ["a note", "warning"]),
        (["-v"], ["a note", "a warning", "DEBUG sparring.example: a detail"], []),
    ],
    ids=["default", "quiet", "verbose"],
)
@pytest.mark.usefixtures("raising")
def test_verbosity_selects_what_standard_error_contains(
    options: list[str], shown: list[str], absent: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger().level
    assert main([*options, "tell"]) == 0
    told = capfd.readouterr()
    assert told.out == ""
    for text in shown:
        assert text in told.err
    for text in absent:
        assert text not in told.err
    assert logging.getLogger().level == before


@pytest.mark.parametrize(
    ("terminal", "arguments", "is_shown"),
    [
        (True, ["tell"], True),
        (False, ["tell"], False),
        (True, ["tell", "--json"], False),
        (True, ["--quiet", "tell"], False),
    ],
)
@pytest.mark.usefixtures("raising")
def test_a_progress_bar_is_shown_on_a_terminal_only(
    terminal: bool,
    arguments: list[str],
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    monkeypatch.setenv("TERM", "xterm")
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert ("5 rows" in told.err) == is_shown


def test_shells_can_complete_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"sparring pl": "plugins", "sparring inspect --ver": "--verify"}
    monkeypatch.setenv("_SPARRING_COMPLETE", "complete_bash")
    for line, expected in words.items():
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
        assert main([]) == 0
        assert expected in capsys.readouterr().out.split()
