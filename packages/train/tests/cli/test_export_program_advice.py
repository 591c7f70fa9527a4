"""The error of `export-program` for rankings advises a service only if rows are the model's vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring_cli.application import main

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')


@pytest.mark.parametrize(
    ("model", "has_vectors"),
    [
        ("kind: two_towers", True),
        ("kind: two_towers, layers: [4]", False),
        ("kind: two_towers, normalize: true", False),
        ("kind: two_towers, user: [user, age], item: [item]", False),
        ("kind: sequence", False),
    ],
)
def test_a_service_is_advised_only_if_rows_are_vectors(
    model: str, has_vectors: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = "kind: table, path: log.csv, categorical: [user, age, item], time: at, history: {}"
    path = tmp_path / "run.yaml"
    path.write_text(f"data: {{{data}}}\nmodel: {{{model}}}\n")
    assert main(["export-program", str(path), "--output", str(tmp_path / "bundle")]) == 1
    error = capsys.readouterr().err
    assert "use `sparring recommend`" in error
    assert ("query a service" in error) == has_vectors
