"""The demo of serving: real processes on a short training, and what its report says of pulls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

for _name in ("sparring_serve", "sparring_packed.library", "sparring_train", "torch", "matplotlib"):
    pytest.importorskip(_name)

ROOT = Path(__file__).resolve().parents[1]
# A few seconds of training, on one thread, in the storage that is always there.
SHORT = (
    "data.samples=12000", "data.test_samples=500", "data.batch_size=200", "training.epochs=1",
    "snapshots.every_steps=10", "snapshots.full_every=3", "storage.backend=memory",
)  # fmt: skip


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "packages/serve/examples"))
    import serving_demo

    return serving_demo


def test_a_training_is_served_while_it_goes_on(demo: Any, tmp_path: Path) -> None:
    seen = demo.watch_training(tmp_path, ROOT / "configs/quickstart.yaml", SHORT)
    assert seen.errors == []
    assert [step for _, step in seen.saved] == [10, 20, 30, 40, 50, 60]
    assert seen.pulls[-1].step == 60
    assert all(each.num_versions == 1 and each.num_found == each.num_ids for each in seen.pulls)
    steps = [each.step for each in seen.pulls]
    assert steps == sorted(steps)
    assert seen.num_compared > 0
    text = demo.write_report(tmp_path / "reports/serving.html", seen)
    assert re.search(r"pulls that failed +0\n", text)
    page = (tmp_path / "reports/serving.html").read_text()
    assert page.count("<svg") == 1
    assert f"<td>{len(seen.pulls):,}</td>" in page


def test_a_process_that_fails_ends_the_demo_with_what_it_said(demo: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"sparring train ended with 2: .*data\.samplez"):
        demo.watch_training(tmp_path, ROOT / "configs/quickstart.yaml", ("data.samplez=1",))


def test_the_report_counts_what_went_wrong(demo: Any, tmp_path: Path) -> None:
    seen = demo.Seen(saved=[(0.0, 1), (1.5, 2)], published=[(0.1, 1, False), (2.0, 2, True)])
    seen.pulls += [
        demo.Pull(1.0, 0.01, 1, 0.9, 4, 1, 4),
        demo.Pull(3.0, 0.02, 2, 1.0, 4, 2, 3),
        demo.Pull(3.5, 0.03, 1, 3.4, 4, 1, 4),
    ]
    seen.errors.append((3.2, "no <replica>"))
    text = demo.write_report(tmp_path / "serving.html", seen)
    facts = dict(re.findall(r"^(.*?) {2,}(.*)$", text, re.MULTILINE))
    assert facts["pulls that failed"] == "1"
    assert facts["pulls of more than one version"] == "1"
    assert facts["pulls of an earlier version than the one before"] == "1"
    assert facts["ids without a row"] == "1 of 12"
    assert facts["from a saved snapshot to the first answer, median"] == "1.50 s"
    assert facts["latency, median"] == "20.0 ms"
    assert "<li>no &lt;replica&gt;</li>" in (tmp_path / "serving.html").read_text()
