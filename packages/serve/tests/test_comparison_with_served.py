"""A version is compared with the served one, or nothing is published."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.errors import SnapshotError
from sparring_serve import MetricValue
from sparring_serve.publishing.evaluation import EvaluationCheck
from sparring_serve.publishing.gate_file import unpin
from sparring_serve.publishing.publisher import PublishResult, pin, publish_newest
from sparring_serve.publishing.quality_limits import QualityLimits
from sparring_testing.faults.damaged_file import flip_byte

from .test_publication_order import ALL, Runs

pytest.importorskip("sparring_packed")


class Checked(Runs):
    """A run whose versions are published if they are not worse than the served one."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.auc = 0.8
        self.check = self.make_check(max_drop=0.01)

    def make_check(self, **limits: Any) -> EvaluationCheck:
        evaluator: Any = SimpleNamespace(
            quality=lambda *_: MetricValue("auc", self.auc, is_higher_better=True)
        )
        manager: Any = SimpleNamespace(extend=lambda *_: None, find=lambda *_: evaluator)
        return EvaluationCheck(None, QualityLimits(**limits), manager)

    def publish_checked(self, step: int | None = None) -> PublishResult | None:
        if step is not None:
            self.save("run", step)
        return publish_newest(self.path / "run", self.out, ALL, self.check)


@pytest.fixture
def runs(tmp_path: Path) -> Checked:
    return Checked(tmp_path)


@pytest.mark.parametrize("is_pinned", [True, False])
def test_a_served_version_that_cannot_be_read_is_not_skipped(
    runs: Checked, is_pinned: bool
) -> None:
    assert runs.publish_checked(1) is not None  # nothing to compare with
    if is_pinned:
        assert runs.publish_checked(2) is not None
        pin(runs.out, "step-000000001")
    flip_byte(runs.out / "step-000000001" / "manifest.json", -9)
    with pytest.raises(
        SnapshotError, match=r"step-000000001 cannot be compared.* --unpin; otherwise"
    ):
        runs.publish_checked(3)
    if is_pinned:
        unpin(runs.out)
    else:
        runs.check = runs.make_check(minimums={"auc": 0.5})
    assert runs.publish_checked() is not None


def test_a_version_whose_snapshot_was_removed_is_not_compared_with_an_older_measurement(
    runs: Checked,
) -> None:
    assert runs.publish_checked(1) is not None
    shutil.rmtree(runs.path / "run" / "step-000000001")
    with pytest.raises(SnapshotError, match=r"of step 1 cannot be compared, .*snapshots\.keep"):
        runs.publish_checked(2)
