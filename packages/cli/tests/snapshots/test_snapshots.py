"""Commands about snapshots: their output, their files and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sparring.contracts.storage.results import ScanChunk
from sparring.contracts.tables.table import TableConfig
from sparring.errors import SnapshotError
from sparring.kernels import functions as kernels
from sparring.kernels.mixed_precision import read_state
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.application import main

from .snapshot_samples import ITEM, make_chunk, rows_by_key, save


@pytest.fixture
def chain(tmp_path: Path) -> Snapshot:
    first = save(tmp_path / "runs", 1, make_chunk(range(100)))
    return save(tmp_path / "runs", 2, make_chunk(range(5), 1), base=first.url, erased=[7])


def flip_last_bit(snapshot: Snapshot) -> str:
    path = Path(snapshot.url) / snapshot.files("item", "rows")[0].name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    return path.name


def test_inspect_shows_tables_and_chain(
    chain: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", chain.url, "--verify"]) == 0
    out = capsys.readouterr().out
    for part in ("step 2", "delta step-000000002", "full step-000000001", "rowwise_adagrad"):
        assert part in out
    assert "state: optimizer" in out
    assert "all as written" in out


def test_the_folder_of_a_run_means_its_newest_snapshot(
    chain: Snapshot,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    shown, command = [], ["export", "--output"]
    for number, url in enumerate((chain.url, str(Path(chain.url).parent))):
        output = [f"out-{number}"]
        assert main([*command, *output, url]) == 0
        shown.append(capsys.readouterr().out.replace(f"out-{number}", "out"))
    assert shown[0] == shown[1]
    (tmp_path / "empty").mkdir()
    assert main([*command, *output, "empty"]) == 3
    assert "empty" in capsys.readouterr().err


def test_inspect_prints_json(chain: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", chain.url, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["step"], found["world_size"], len(found["chain"])) == (2, 1, 2)
    item = found["tables"]["item"]
    norms = [
        float(np.linalg.norm(np.frombuffer(row, np.float32)[:4]))
        for row, _ in rows_by_key(chain).values()
    ]
    assert item["rows"] == 99
    assert item["norm_min"] == pytest.approx(min(norms))
    assert item["norm_mean"] == pytest.approx(np.mean(norms))
    assert item["norm_max"] == pytest.approx(max(norms))
    assert item["non_finite"] == 0
    assert found["kind"] == "snapshot"
    assert "verified" not in found


def test_inspect_of_a_damaged_snapshot_names_the_file_and_fails(
    chain: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chain.base is not None
    name = flip_last_bit(chain.base)
    assert main(["inspect", chain.url, "--verify"]) == 1
    captured = capsys.readouterr()
    assert f"{name} is damaged at byte 0" in captured.err
    assert "DAMAGED: 1 problem" in captured.out
    assert main(["inspect", chain.url, "--verify", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verified"] is False
    assert found["problems"][0]["file"] == name
    assert main(["inspect", chain.url]) == 1
    assert name in capsys.readouterr().err


def test_norms_report_non_finite_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_chunk(range(3)).rows.copy()
    rows[1, 0] = np.nan
    save(tmp_path, 1, ScanChunk(np.arange(3), rows, np.zeros(3, np.uint64)))
    assert main(["inspect", str(tmp_path / "step-000000001")]) == 0
    assert "1 embedding not finite" in capsys.readouterr().out


def test_inspect_of_a_run_lists_its_snapshots(
    chain: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(Path(chain.url).parent)
    assert main(["inspect", folder]) == 0
    assert "delta over step-000000001" in capsys.readouterr().out
    assert main(["inspect", folder, "--verify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "run"
    assert [each["step"] for each in found["snapshots"]] == [1, 2]
    assert (found["newest"]["step"], found["newest"]["verified"]) == (2, True)
    assert main(["inspect", f"{folder}/nowhere"]) == 3
    assert "there is no snapshot" in capsys.readouterr().err
    flip_last_bit(chain)
    assert main(["inspect", folder, "--verify"]) == 1


def test_compact_writes_one_full_snapshot(
    chain: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", chain.url, "--output", str(tmp_path / "full")]) == 0
    assert "step 2" in capsys.readouterr().out
    assert rows_by_key(open_snapshot(tmp_path / "full")) == rows_by_key(chain)
    assert main(["compact", chain.url, "--output", str(tmp_path / "full")]) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_export_writes_the_contents_of_the_snapshot(tmp_path: Path, dtype: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    config = TableConfig("item", 3, dtype, state_width=2)
    table = TableDescription.of(config, has_scores=True)
    chunk = make_chunk(range(-50, 50), table=table)
    snapshot = save(tmp_path, 1, chunk, table=table)
    output = tmp_path / "out"
    command = ["export", snapshot.url, "--to", "parquet", "--output", str(output), "--state"]
    assert main(command) == 0
    found = parquet.read_table(output / "item.parquet")
    assert found.column_names == ["key", "embedding", "state", "score"]
    assert found["key"].to_pylist() == chunk.keys.tolist()
    assert found["score"].to_pylist() == chunk.scores.tolist()
    embeddings = config.embeddings(chunk.rows)
    wide = kernels.decode(embeddings) if config.is_narrow else embeddings
    np.testing.assert_array_equal(found["embedding"].to_pylist(), wide)  # int8 contains NaN
    np.testing.assert_array_equal(found["state"].to_pylist(), read_state(config, chunk.rows))
    assert main(command) == 2
    assert [path.name for path in output.iterdir()] == ["item.parquet"]


def test_export_of_a_damaged_snapshot_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    snapshot = save(tmp_path, 1, make_chunk(range(100)))
    flip_last_bit(snapshot)
    assert main(["export", snapshot.url, "--output", str(tmp_path / "out")]) == 1
    assert not list((tmp_path / "out").iterdir())


def test_export_that_fails_at_its_last_table_leaves_no_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    writer = SnapshotWriter(str(tmp_path / "a"), step=1)
    tables = [TableDescription.of(TableConfig(name, 2)) for name in ("user", "zone")]
    for table in tables:
        writer.write_table(table, [make_chunk(range(5), table=table)])
    writer.finish()
    snapshot = writer.commit()
    path = Path(snapshot.url) / snapshot.files("zone", "rows")[0].name
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    command = ["export", snapshot.url, "--output", str(tmp_path / "out")]
    assert main(command) == 1
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_is_not_a_snapshot_is_reported(
    chain: Snapshot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(chain.url).parent
    with pytest.raises(SnapshotError, match=f"`sparring inspect {folder}`"):
        open_snapshot(str(folder))
    (tmp_path / "file").touch()
    assert main(["inspect", str(tmp_path / "file")]) == 2
    assert "is not a folder; pass a folder of snapshots" in capsys.readouterr().err
    (Path(chain.url) / "manifest.json").write_text("junk")
    assert main(["inspect", str(folder)]) == 0
    captured = capsys.readouterr()
    assert "step-000000001" in captured.out
    assert "step-000000002 is not listed, because it cannot be read" in captured.err


def test_an_empty_table_is_inspected_and_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    writer = SnapshotWriter(str(tmp_path / "a"), step=0)
    writer.write_table(ITEM, [])
    writer.finish()
    writer.commit()
    assert main(["inspect", str(tmp_path / "a"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"]["item"]["norm_min"] is None
    assert main(["export", str(tmp_path / "a"), "--output", str(tmp_path / "out")]) == 0
