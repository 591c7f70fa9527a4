"""Tests that the benchmarks run and that contenders agree. The figures are meaningless at this size."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["pooled"], id="one", marks=pytest.mark.slow),
        pytest.param([], id="all", marks=pytest.mark.long),
    ],
)
def test_a_quick_run_writes_figures_and_a_plot(
    names: list[str],
    import_program: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("SPARRING_BENCHMARK_TFRA_PYTHON", raising=False)
    benchmarks = import_program("benchmarks.__main__")
    main = benchmarks.main
    assert main([*names, "--quick", "--output", str(tmp_path)]) == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert set(figures) == set(names or benchmarks.QUICK)
    assert {"pooled", "techniques", "exchange"} <= set(benchmarks.QUICK)
    assert all(figures.values())
    assert (tmp_path / "ratios.png").stat().st_size > 1000
    assert "EmbeddingBag(sparse) + Adagrad" in capsys.readouterr().out
    assert main(["pooled", "tabels"]) == 2
    assert "unknown benchmark 'tabels'" in capsys.readouterr().err


def test_benchmarks_of_a_gpu_report_why_they_measure_nothing(
    import_program: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = pytest.importorskip("sparring_hkv.devices")
    if devices.why_cuda_is_unavailable() is None:
        pytest.skip("there is a GPU here")
    program = import_program("benchmarks.gpu.__main__")
    assert program.main([]) == 0
    assert capsys.readouterr().out.startswith("no GPU: ")


def test_benchmarks_of_a_gpu_run_over_the_emulator_and_give_no_figures(
    import_program: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip(
        "sparring_hkv._emulated",
        reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
    )
    program = import_program("benchmarks.gpu.__main__")
    written = tmp_path / "figures.json"
    assert program.main(["--device", "emulated", "--output", str(written)]) == 0
    assert "FAILED" not in capsys.readouterr().out
    results = json.loads(written.read_text())
    assert results["gpu"] == "the emulator"
    assert set(results["figures"]) == {"machine", *program.PROGRAMS}
    lines = [each for some in results["figures"].values() for each in some]
    assert {each["value"] for each in lines} == {"tried"}
    assert {each["is_reached"] for each in lines} == {None}


def test_both_sides_of_recbole_read_one_split(import_program: Any, tmp_path: Path) -> None:
    splits = import_program("benchmarks.recbole_split")
    parquet = pytest.importorskip("pyarrow.parquet")
    # Eight users met the same nine items, each a day later than the item before; one item was not liked.
    lines = [
        f"{user},{item},{2 if item == 3 else 5},{100 * item}"
        for item in reversed(range(1, 10))
        for user in range(1, 9)
    ]
    ratings = tmp_path / "ratings.csv"
    ratings.write_text("\n".join(["userId,movieId,rating,timestamp", *lines, "1,77,5,1"]) + "\n")
    split = splits.prepare(ratings, tmp_path, length=50)
    liked = [1, 2, 4, 5, 6, 7, 8, 9]
    assert [split.items[rows].tolist() for rows in split.by_user()] == [liked] * 8
    assert split.is_train.sum() == 8 * 6
    assert split.users.tolist() == splits.Split.load(tmp_path).users.tolist()
    theirs = (tmp_path / "ratings/ratings.inter").read_text().splitlines()
    assert theirs[:3] == ["user_id:token\titem_id:token\ttimestamp:float", "1\t1\t0", "1\t2\t1"]
    for name, num_trained, item, history in (
        ("test", 6, 9, liked[:-1]),
        ("valid", 6, 8, liked[:-2]),
        ("refit", 7, 9, liked[:-1]),
    ):
        rows = parquet.read_table(tmp_path / f"{name}.parquet").to_pylist()
        held_out = [each for each in rows if each["fold"] == "test"]
        assert [each["item"] for each in held_out] == [item] * 8
        assert all(each["history"] == history for each in held_out)
        trained_on = [each["item"] for each in rows if each["fold"] == "train"]
        assert trained_on == liked[:num_trained] * 8


@pytest.mark.parametrize(
    ("options", "recall", "ndcg"),
    [
        pytest.param(["--epochs", "4"], 0.05, 0.025, id="some epochs", marks=pytest.mark.slow),
        pytest.param([], 0.077, 0.036, id="all epochs", marks=pytest.mark.long),
    ],
)
def test_two_towers_recommend_better_than_popularity_as_configured(
    options: list[str],
    recall: float,
    ndcg: float,
    import_program: Any,
    movielens: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sparring_torch", reason="needs sparring-torch")
    pytest.importorskip("sparring_packed", reason="needs sparring-packed, which ranks all items")
    pytest.importorskip("sparring_hkv", reason="needs sparring-hkv, which the configuration names")
    program = import_program("benchmarks.recbole")
    chosen = ["--models", "two_towers,popularity", "--seeds", "1", "--threads", "1"]
    assert program.main([str(movielens), *chosen, *options]) == 0
    # Long lines are wrapped.
    lines = re.findall(r"^(\w+)\s+seed\s+1\s+(\{[^}]*\})", capsys.readouterr().out, re.MULTILINE)
    found = {model: ast.literal_eval(row) for model, row in lines}
    assert found["popularity"]["recall@10"] == 0.0449
    assert found["two_towers"]["recall@10"] > recall
    assert found["two_towers"]["ndcg@10"] > ndcg
