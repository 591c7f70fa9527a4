"""Files of the model are verified and copied together with the rows of a version."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import sparring_packed
from sparring.errors import InvalidArgumentError, SnapshotDamagedError, SnapshotError
from sparring_packed.manifest import decode_manifest, encode_manifest, read_manifest_text

WEIGHTS = {"top.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(7)}
PARAMETERS = sparring_packed.encode_parameters(WEIGHTS, {"framework": "torch"})
MODEL = {"parameters": PARAMETERS, "preprocessing": json.dumps({"format": 1}).rjust(256).encode()}
WITH_MODEL = sparring_packed.WriteOptions(model=MODEL)


@pytest.fixture
def chain(training: Any) -> Any:
    """A full version and a delta, both with a model."""
    training.train(np.arange(50), options=WITH_MODEL)
    training.train(np.arange(5), options=WITH_MODEL)
    return training


def test_each_version_contains_the_files_of_the_model(chain: Any) -> None:
    for step in (1, 2):
        folder = Path(chain.served_url(step))
        manifest = sparring_packed.read_manifest(folder)
        assert manifest.version == 2
        assert {each.kind: each.size_bytes for each in manifest.model} == {
            kind: len(data) for kind, data in MODEL.items()
        }
        assert (folder / "preprocessing.json").read_bytes() == MODEL["preprocessing"]
        arrays, metadata = sparring_packed.decode_parameters(
            (folder / "parameters.safetensors").read_bytes()
        )
        assert metadata == {"framework": "torch"}
        assert all(np.array_equal(arrays[name], each) for name, each in WEIGHTS.items())
        assert arrays["top.weight"].dtype == np.float32
    with sparring_packed.open(chain.served) as tables:
        assert np.array_equal(tables.lookup("item", [1, 40]), chain.expected([1, 40]))


def test_a_manifest_without_a_model_keeps_its_bytes(trained: Any) -> None:
    text = read_manifest_text(trained.served_url())
    manifest = decode_manifest(text)
    assert (manifest.version, manifest.model) == (1, ())
    assert b'"model"' not in text
    assert encode_manifest(manifest) == text


@pytest.mark.parametrize("verify", ["all", "open"])
@pytest.mark.parametrize("name", ["parameters.safetensors", "preprocessing.json"])
def test_a_damaged_or_missing_file_of_the_model_rejects_the_version(
    chain: Any, name: str, verify: Any
) -> None:
    file = Path(chain.served_url()) / name
    data = file.read_bytes()
    if verify == "all":
        file.write_bytes(data[:-1] + b"?")
        with pytest.raises(SnapshotDamagedError, match=f"{name} is damaged"):
            sparring_packed.open(chain.served, verify=verify)
    file.write_bytes(data[:-1])
    with pytest.raises(SnapshotError, match=name):
        sparring_packed.open(chain.served, verify=verify)
    file.unlink()
    with pytest.raises(SnapshotError, match=name):
        sparring_packed.open(chain.served, verify=verify)


def test_a_mirror_copies_and_checks_the_files_of_the_model(chain: Any, tmp_path: Path) -> None:
    url = f"memory://served/{uuid.uuid4().hex}"
    memory = fsspec.filesystem("memory")
    memory.put(str(chain.served), url, recursive=True)
    with sparring_packed.open(url, cache=tmp_path / "good") as tables:
        copy = Path(tables.snapshot_url)
        assert (copy / "parameters.safetensors").read_bytes() == PARAMETERS
    memory.pipe(f"{url}/{copy.name}/parameters.safetensors", PARAMETERS[:-1] + b"?")
    with pytest.raises(SnapshotDamagedError, match=r"parameters\.safetensors was copied"):
        sparring_packed.open(url, cache=tmp_path / "bad")


@pytest.mark.parametrize("model", [{"parameters": b"short"}, {"weights": PARAMETERS}])
def test_unsuitable_files_of_the_model_are_rejected(model: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="at least 241 bytes for parameters or prep"):
        sparring_packed.WriteOptions(model=model)


def test_a_version_without_its_files_is_rejected(chain: Any) -> None:
    manifest = sparring_packed.read_manifest(chain.served_url())
    for changed in ({"version": 1}, {"model": ()}):
        with pytest.raises(ValueError, match=r"found version \d, expected \d for generation 0"):
            decode_manifest(encode_manifest(manifest.model_copy(update=changed)))


def test_inspect_shows_the_files_of_the_model(
    chain: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from sparring_packed.inspection import inspect_serving_snapshot

    inspect_serving_snapshot(str(chain.served), verify=True, as_json=True)
    [newest, _] = json.loads(capsys.readouterr().out)["chain"]
    assert newest["model"] == {kind: len(data) for kind, data in MODEL.items()}
    inspect_serving_snapshot(str(chain.served), verify=True, as_json=False)
    assert "parameters 0.00 MiB" in capsys.readouterr().out
