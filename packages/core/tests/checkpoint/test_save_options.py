"""Options of a save, and the rejection of invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparring.contracts.checkpoint import Retention, SaveOptions
from sparring.engine.container import StepContainer
from sparring.errors import InvalidArgumentError
from sparring.snapshot.retention import list_snapshots


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline_seconds": 0},
        {"deadline_seconds": -1.0},
        {"deadline_seconds": float("nan")},
        {"deadline_seconds": float("inf")},
        {"deadline_seconds": "soon"},
        {"undo_bytes": 0},
        {"undo_bytes": "all"},
        {"share": float("nan")},
        {"share": True},
        {"share": 1.5},
        {"is_base": 1},
        {"deadline_second": 1.0},
    ],
)
def test_options_out_of_range_are_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        SaveOptions(**wrong)


def test_an_invalid_state_is_rejected(tmp_path: Path) -> None:
    with StepContainer() as container, pytest.raises(InvalidArgumentError, match=r"State.*int"):
        container.save(str(tmp_path / "a"), states={"a": 1})  # type: ignore[dict-item]
    assert not list(tmp_path.iterdir())


def test_a_container_remembers_its_last_snapshots_but_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engine.checkpoint.save_manager._MAX_HISTORY", 3)
    with StepContainer() as container:
        saved = [container.save(str(tmp_path / f"at-{number}")).url for number in range(5)]
        container.load(saved[0])
        assert list(container.saves.history) == [saved[3], saved[4], saved[0]]
        retention = SaveOptions(retention=Retention(str(tmp_path), 2))
        last = container.save(str(tmp_path / "last"), options=retention).url
        assert list(container.saves.history) == [saved[0], last]
    assert sorted(list_snapshots(tmp_path)) == sorted([saved[0], last])
