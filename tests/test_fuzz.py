"""Tests that the targets of `python -m fuzz` accept any bytes, and detect errors."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sparring_serve.service import LookupService
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, TableIds

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "fuzz/corpus"


@pytest.fixture
def target(import_program: Any) -> Any:
    return import_program("fuzz.requests").make_target()


@pytest.fixture
def calls(import_program: Any, closing: ExitStack) -> Any:
    return closing.enter_context(import_program("fuzz.calls").make_target())


def test_requests_of_any_bytes_are_answered_or_rejected(target: Any) -> None:
    dice = random.Random(3)
    whole = encode(PullRequest((TableIds("item", bytes(range(64))),), 1, 2))
    for kind in range(256):
        target(bytes([kind]))
        for _ in range(5):
            content = bytearray(whole)
            content[dice.randrange(len(content))] = dice.randrange(256)
            target(bytes([kind]) + content)


# Arrow prints an error if a row with a wrong number of fields is not UTF-8, and then rejects the file.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("name", "words"),
    [("configurations", ()), ("snapshots", ()), ("tables", ("csv",)), ("tables", ("parquet",)),
     ("streams", ())],
)  # fmt: skip
def test_changed_files_are_read_or_rejected_as_documented(
    name: str, words: tuple[str, ...], import_program: Any
) -> None:
    module = import_program(f"fuzz.{name}")
    dice = random.Random(7)
    seeds = list(module.seeds(*words))
    former = CORPUS / (words[0] if words else name)
    inputs = [each.read_bytes() for each in sorted(former.glob("*"))]
    for seed in dice.sample(seeds, min(len(seeds), 12)):
        for _ in range(6):
            changed = bytearray(seed)
            changed[dice.randrange(len(changed))] = dice.randrange(256)
            inputs.append(bytes(changed))
    with module.open_target(*words) as feed:
        for each in inputs:
            feed(each)


@pytest.mark.parametrize("name", ["configurations", "streams"])
def test_an_undocumented_error_of_a_reader_ends_the_fuzzer(
    name: str, import_program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_program(f"fuzz.{name}")

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("sparring_train.load_config", fail)
    monkeypatch.setattr("sparring_train.data.stream.events.MessageDecoder.parse", fail)
    with module.open_target() as feed, pytest.raises(ZeroDivisionError):
        feed(b"")


def test_an_unexpected_error_ends_the_fuzzer(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(LookupService, "pull", fail)
    with pytest.raises(ZeroDivisionError):
        list(map(target, (bytes([kind]) for kind in range(64))))


def test_calls_that_stop_halfway_leave_a_healthy_server(calls: Any) -> None:
    dice = random.Random(5)
    for path in range(10):
        for timeout in range(6):
            calls(bytes([0, path, timeout, 0, 1]))
    for _ in range(60):
        calls(bytes(dice.randrange(256) for _ in range(dice.randrange(80))))


def test_a_call_that_fails_in_the_server_ends_the_fuzzer(
    calls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(LookupService, "pull", fail)
    whole = bytes([0, 0, 3, 0, 1, 1, 0, 5, 0, 255])

    def call_repeatedly() -> None:
        for _ in range(20):  # a call may be cut off before its message is read
            calls(whole)

    with pytest.raises(AssertionError, match=r"(?s)the server failed: .*ZeroDivisionError"):
        call_repeatedly()
