"""``sparring inspect`` of serving snapshots on a terminal and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sparring_packed
from sparring_cli.application import main


@pytest.fixture
def chain(training: Any) -> Any:
    training.train(range(20), quantize={"item": "int8"})
    training.train(range(15, 25), [0, 1])
    return training


def test_it_shows_tables_and_the_chain(chain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(chain.served), "--verify"]) == 0
    shown = capsys.readouterr().out
    assert f"delta {Path(chain.served_url(2)).name}, step 2" in shown
    assert f"  full {Path(chain.served_url(1)).name}, step 1" in shown
    assert "int8" in shown
    assert "all as written" in shown


def test_json_has_the_rows_of_each_layer(chain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    # A snapshot of the chain by its own name.
    for step, rows in ((1, [(20, 0)]), (2, [(10, 2), (20, 0)])):
        assert main(["inspect", chain.served_url(step), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["kind"], told["verified"]) == ("serving snapshot", False)
        own = [each["tables"]["item"] for each in told["chain"]]
        assert [(each["rows"], each["erased"]) for each in own] == rows
        assert [each["is_delta"] for each in told["chain"]] == [True] * (step - 1) + [False]
        assert told["tables"]["item"]["dtype"] == "int8"
        for each, layer in zip(told["chain"], own, strict=True):
            files = (chain.served / each["name"]).glob("*item*")
            assert layer["bytes"] == sum(file.stat().st_size for file in files)


def test_a_snapshot_on_another_file_system_is_shown_by_its_url(
    training: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    training.save(training.draw(range(20), 1))
    folder = f"memory://{tmp_path.name}/served"
    sparring_packed.write(training.url(), f"{folder}/step-1")
    for url in (folder, f"{folder}/step-1"):
        assert main(["inspect", url, "--verify", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["url"], told["verified"]) == (f"{folder}/step-1", True)
        assert told["tables"]["item"]["most_rows"] == 20


@pytest.mark.parametrize("kind", ["rows", "existing"])
def test_damage_is_found(chain: Any, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    [rows] = Path(chain.served_url(1)).glob(f"{kind}.item.*")
    data = bytearray(rows.read_bytes())
    data[-70] ^= 1
    rows.write_bytes(data)
    assert main(["inspect", chain.served_url(2), "--verify"]) == 1
    assert rows.name in capsys.readouterr().err


def test_a_missing_snapshot_is_reported(chain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(chain.folder / "none")]) == 3
    assert "there is no snapshot" in capsys.readouterr().err
