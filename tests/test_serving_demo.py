"""Runs the serving demo with real processes on a short training."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

for _name in ("sparring_serve", "sparring_packed.library", "sparring_train", "torch"):
    pytest.importorskip(_name)

ROOT = Path(__file__).resolve().parents[1]
# A few seconds of training on one thread, in the built-in storage.
SHORT = (
    "data.samples=6000", "data.test_samples=500", "data.batch_size=200", "training.epochs=1",
    "snapshots.every_steps=10", "snapshots.full_every=3", "storage.backend=memory",
)  # fmt: skip


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "packages/serve/examples"))
    import serving_demo

    monkeypatch.setattr(serving_demo, "SECONDS_BETWEEN_PULLS", 0.05)
    return serving_demo


@pytest.mark.slow  # the tests of sparring-serve publish and serve without a training
def test_a_training_is_served_while_it_continues(
    demo: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pulls: list[tuple[int, float, float]] = []
    given = (tmp_path, ROOT / "configs/quickstart.yaml", SHORT)
    steps = demo.serve_training(*given, lambda *pull: pulls.append(pull))
    assert [step for step, _, _ in pulls] == steps == sorted(steps)
    assert all(seconds > 0 <= age for _, seconds, age in pulls)
    versions = sorted(set(steps))
    published = sorted(int(each.name[5:]) for each in (tmp_path / "served").glob("step-*"))
    assert set(versions) <= set(published) <= {10, 20, 30}
    # The publisher skips snapshots that are older than the newest one, but not the last one.
    assert (versions[0], versions[-1]) == (demo.FIRST_STEPS, 30)
    text = capsys.readouterr().out
    told = re.findall(r"^step +(\d+) served (\S+) s after it was published", text, re.MULTILINE)
    assert [int(step) for step, _ in told] == versions
    assert all(0 <= float(age) < demo.MAX_DELAY_SECONDS for _, age in told)
    assert re.findall(r"; step (\d+) was \S+ s old", text) == [str(each) for each in versions[:-1]]
    assert f"{len(steps)} pulls, {len(versions)} versions" in text


def test_a_process_that_fails_ends_the_demo_with_its_output(demo: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"sparring train ended with 2: .*data\.samplez"):
        demo.serve_training(tmp_path, ROOT / "configs/quickstart.yaml", ("data.samplez=1",))


def test_a_version_with_missing_rows_ends_the_demo(demo: Any, tmp_path: Path) -> None:
    class Client:
        def pull(self, ids: dict[str, np.ndarray]) -> SimpleNamespace:
            found = {name: np.arange(len(each)) > 0 for name, each in ids.items()}
            return SimpleNamespace(
                versions=(SimpleNamespace(step=20),), found=found, age_seconds=0.5
            )

    training = SimpleNamespace(has_ended=lambda: False)
    with pytest.raises(RuntimeError, match="step 20 does not have all rows"):
        demo.pull_versions(Client(), {"item": np.arange(9)}, training, tmp_path)
