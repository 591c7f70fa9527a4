"""A version that servers would not use, because the folder has a higher step, is not published."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, TableConfig
from sparring.errors import SnapshotError
from sparring_serve.publishing.publisher import PublisherOptions, pin, publish_newest

sparring_packed = pytest.importorskip("sparring_packed")

Save = Callable[[str, int], str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(run: str, step: int) -> str:
        with StepContainer() as container:
            container.declare(TableConfig("item", 4), StorageChoice("memory"))
            container.assign("item", np.arange(3), np.full((3, 4), step, np.float32))
            container.counters.steps = step
            container.save(str(tmp_path / run / f"step-{step:09d}"))
        return str(tmp_path / run)

    return save


def served(out: Path) -> list[str]:
    return sorted(each.name for each in out.iterdir() if each.name.startswith("step"))


@pytest.mark.parametrize("keep", [2, 9])
def test_a_run_with_lower_steps_is_refused(save: Save, tmp_path: Path, keep: int) -> None:
    out, options = tmp_path / "served", PublisherOptions({}, keep=keep)
    for step in (1000, 2000):
        publish_newest(save("first", step), out, options)
    before, again = served(out), save("again", 500)
    with pytest.raises(SnapshotError, match=r"step 500, but .* step 2,000.*another folder"):
        publish_newest(again, out, options)
    assert served(out) == before
    # Both ways out work.
    assert publish_newest(again, tmp_path / "other", options) is not None
    for name in before:
        shutil.rmtree(out / name)
    assert publish_newest(again, out, options) is not None
    with sparring_packed.open(out) as tables:
        assert tables.version.step == 500


def test_the_older_of_two_versions_is_not_reported_as_published(save: Save, tmp_path: Path) -> None:
    out, options = tmp_path / "served", PublisherOptions({})
    for step in (1000, 2000):
        publish_newest(save("run", step), out, options)
    assert publish_newest(tmp_path / "run", out, options) is None
    older = tmp_path / "run" / "step-000001000"
    for options in (PublisherOptions({}), PublisherOptions({"item": "fp16"})):
        with pytest.raises(SnapshotError, match=r"step 1,000, but .*step-000002000"):
            publish_newest(older, out, options)
    pin(out, "step-000001000")
    assert publish_newest(older, out, PublisherOptions({})) is None
