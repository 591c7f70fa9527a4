"""The targets of `python -m fuzz` take any bytes, and notice what must not happen."""

from __future__ import annotations

import importlib
import random
from pathlib import Path
from typing import Any

import pytest

from sparring_serve.service import LookupService
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, TableIds

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("fuzz.requests").make_target()


def test_requests_of_any_bytes_are_answered_or_refused(target: Any) -> None:
    dice = random.Random(3)
    whole = encode(PullRequest((TableIds("item", bytes(range(64))),), 1, 2))
    for kind in range(256):
        target(bytes([kind]))
        for _ in range(5):
            content = bytearray(whole)
            content[dice.randrange(len(content))] = dice.randrange(256)
            target(bytes([kind]) + content)


def _each_kind(target: Any) -> None:
    for kind in range(64):
        target(bytes([kind]))


def test_an_error_that_is_no_refusal_ends_the_fuzzer(
    target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(LookupService, "pull", fail)
    with pytest.raises(ZeroDivisionError):
        _each_kind(target)
