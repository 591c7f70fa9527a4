"""Paths of configuration files are resolved where the file is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from sparring.contracts import LocalPath
from sparring_cli import DocumentModel, read_document, resolve_path, with_paths


class Inner(DocumentModel):
    file: Path | None = None
    name: str = "name"


class Outer(DocumentModel):
    url: LocalPath = Field("served", min_length=1)
    folders: tuple[LocalPath, ...] = ()
    maybe: LocalPath | None = None
    inner: Inner = Inner()
    by_name: dict[str, Inner] = Field(default_factory=dict)
    options: dict[str, Any] = Field(default_factory=dict)


TEXT = """
url: ../served
folders: [a, /b, "s3://c", "simplecache::s3://d"]
inner: {file: tokens, name: x/y}
by_name: {one: {file: ./more/../one}}
options: {path: as it is}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", "runs/a"),
        ("./a/../b", "runs/b"),
        ("../a", "a"),
        ("..", "."),
        ("/a/b", "/a/b"),
        ("s3://a/b", "s3://a/b"),
        ("zip::s3://a", "zip::s3://a"),
    ],
)
def test_relative_paths_start_at_a_folder(text: str, expected: str) -> None:
    assert resolve_path(text, "runs") == expected
    assert resolve_path(expected, "") == expected


def test_a_document_resolves_its_paths_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(TEXT)
    found = read_document(tmp_path / "file.yaml").as_model(Outer)
    assert found.url == str(tmp_path.parent / "served")
    assert found.folders == (f"{tmp_path}/a", "/b", "s3://c", "simplecache::s3://d")
    assert found.maybe is None
    assert found.inner == Inner(file=tmp_path / "tokens", name="x/y")
    assert found.by_name["one"].file == tmp_path / "one"
    assert found.options == {"path": "as it is"}


def test_paths_of_overrides_start_at_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(TEXT)
    document = read_document(tmp_path / "file.yaml")
    for each in ("url=mine", "inner.file=token", "folders=[x]"):
        document.override(each)
    found = document.as_model(Outer)
    assert (found.url, found.inner.file, found.folders) == ("mine", Path("token"), ("x",))
    assert found.by_name["one"].file == tmp_path / "one"


def test_a_default_is_resolved_and_counts_as_not_set(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text("inner: {file: tokens}\n")
    found = read_document(tmp_path / "file.yaml").as_model(Outer)
    assert found.url == str(tmp_path / "served")
    assert found.model_fields_set == {"inner"}
    assert found.inner.model_fields_set == {"file"}


def test_values_without_a_path_are_not_copied() -> None:
    model = Outer(url="/a", by_name={"one": Inner()})
    assert with_paths(model, lambda _, path: path) is model
