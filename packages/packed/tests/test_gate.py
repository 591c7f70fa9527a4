"""The file gate.json: what is written is read, and wrong content is rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import InvalidArgumentError, SnapshotDamagedError, SnapshotIOError
from sparring_packed import Gate, read_gate, write_gate


def test_a_gate_is_written_and_read(tmp_path: Path) -> None:
    assert read_gate(tmp_path / "none") == Gate()
    gate = Gate(True, "wörse", 7.5, "step-1", "gate")
    write_gate(tmp_path / "served", gate)
    assert read_gate(f"{tmp_path}/served/") == gate
    assert json.loads((tmp_path / "served/gate.json").read_text()) == {
        "format": 1,
        "state": "closed",
        "reason": "wörse",
        "since": 7.5,
        "pin": "step-1",
        "pinned_by": "gate",
    }
    write_gate(tmp_path / "served", Gate())
    assert read_gate(tmp_path / "served") == Gate()
    assert [each.name for each in (tmp_path / "served").iterdir()] == ["gate.json"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"format": 2}, "its format is 2"),
        ({"state": "ajar"}, "its state is 'ajar'"),
        ({"pin": "../x", "pinned_by": "gate"}, "without a path"),
        ({"pin": "x"}, "pinned_by must be"),
        ({"pinned_by": "gate"}, "pinned_by must be"),
        ({"reason": 7}, "must be strings or null"),
        ({"since": None}, "damaged"),
        ({"reason": "x" * (64 << 10)}, "more than"),
    ],
)
def test_wrong_content_is_rejected(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    content = {
        "format": 1,
        "state": "open",
        "reason": None,
        "since": 1,
        "pin": None,
        "pinned_by": None,
    }
    (tmp_path / "gate.json").write_text(json.dumps(content | change))
    with pytest.raises(SnapshotDamagedError, match=expected) as raised:
        read_gate(tmp_path)
    assert "write it again with sparring publish --pin or --unpin" in str(raised.value)


def test_wrong_pins_and_folders_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="list the names with sparring inspect"):
        Gate(pin=".hidden", pinned_by="gate")
    (tmp_path / "file").touch()
    for call in (read_gate, lambda url: write_gate(url, Gate())):
        with pytest.raises(SnapshotIOError, match="check the f"):
            call(tmp_path / "file")
