"""Versions of a folder are ordered by generation, step and name."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import sparring_packed
from sparring.errors import InvalidArgumentError
from sparring_packed import ServingManifest, WriteOptions
from sparring_packed.manifest import decode_manifest, encode_manifest, read_manifest_text

MODEL = {"parameters": bytes(300), "preprocessing": b"{}".rjust(300)}


@pytest.fixture
def written(training: Any) -> Any:
    """Three full versions of the steps 1, 2 and 3 with the generations 0, 2 and 1."""
    for generation in (0, 2, 1):
        training.save(training.draw(np.arange(50), training.step), is_delta=False)
        training.publish(options=WriteOptions(generation=generation))
    return training


def test_readers_use_the_highest_generation(written: Any) -> None:
    with sparring_packed.open(written.served) as tables:
        assert tables.version.step == 2


@pytest.mark.parametrize("model", [{}, MODEL], ids=["rows", "model"])
def test_a_manifest_with_a_generation_has_version_3(training: Any, model: dict[str, bytes]) -> None:
    training.train(np.arange(5), options=WriteOptions(generation=4, model=model))
    text = read_manifest_text(training.served_url())
    manifest = decode_manifest(text)
    assert (manifest.version, manifest.generation, manifest.order) == (3, 4, (4, 1))
    assert len(manifest.model) == len(model)
    assert encode_manifest(manifest) == text
    with sparring_packed.open(training.served) as tables:
        assert np.array_equal(tables.lookup("item", [1]), training.expected([1]))
        for kind, content in model.items():
            assert tables.read_model(kind).content == content


@pytest.mark.parametrize(("version", "generation"), [(1, 2), (2, 1), (3, 0), (4, 1)])
def test_version_and_generation_belong_together(
    training: Any, version: int, generation: int
) -> None:
    training.train(np.arange(5))
    plain = json.loads(read_manifest_text(training.served_url()))
    del plain["hash"]
    with pytest.raises(ValidationError, match="version"):
        ServingManifest.model_validate({**plain, "version": version, "generation": generation})


def test_a_delta_has_at_least_the_generation_of_its_base(training: Any) -> None:
    training.train(np.arange(50), options=WriteOptions(generation=3))
    for given, expected in (
        (None, 3),
        (WriteOptions(generation=2), 3),
        (WriteOptions(generation=5), 5),
    ):
        base = training.served_url()
        training.save(training.draw([1], training.step))
        training.publish(base=base, options=given)
        assert sparring_packed.read_manifest(training.served_url()).generation == expected
    merged = f"{training.served_url()}-002"
    sparring_packed.merge(training.served_url(), merged)
    assert sparring_packed.read_manifest(merged).generation == 5


def test_a_later_version_of_the_format_is_not_called_damage(training: Any) -> None:
    training.train(np.arange(5))
    manifest = sparring_packed.read_manifest(training.served_url())
    later = encode_manifest(manifest.model_copy(update={"version": 4, "generation": 1}))
    with pytest.raises(ValueError, match="version 4, but this release reads versions up to 3"):
        decode_manifest(later)


def test_a_negative_generation_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="generation must be at least 0, found -1"):
        WriteOptions(generation=-1)
