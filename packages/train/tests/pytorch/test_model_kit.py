"""Built-in kinds of models pass the kit, and the kit detects violations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')
pytest.importorskip("sparring_packed", reason="pip install sparring-packed")

from sparring_testing import ModelKindTests, overrides_kit
from sparring_testing.frameworks.model_kind_tests import TrainingRuns

OPTIMIZER = {"sparse": {"name": "sgd", "lr": 1.0}, "dense": {"name": "sgd", "lr": 0.1}}


class TestDlrm(ModelKindTests):
    @pytest.fixture
    def model(self) -> dict[str, Any]:
        return {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [8]}

    # It starts processes; so do `test_training_on_ranks` and the test of the template's model.
    @overrides_kit(reason="only the long suite runs it")
    @pytest.mark.long
    def test_two_ranks_train_like_one(self, trainings: TrainingRuns) -> None:
        super().test_two_ranks_train_like_one(trainings)


class TestTwoTowers(ModelKindTests):
    @pytest.fixture
    def model(self) -> dict[str, Any]:
        return {"kind": "two_towers", "embedding_dim": 4, "layers": [8], "positive": 1}

    @overrides_kit(reason="only the long suite runs it")
    @pytest.mark.long
    def test_two_ranks_train_like_one(self, trainings: TrainingRuns) -> None:
        super().test_two_ranks_train_like_one(trainings)


BROKEN = """
import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, embeddings, num_numbers):
        super().__init__()
        self.embeddings = embeddings
        self.last = nn.Linear(8 + num_numbers, 1)
        self.shift = torch.zeros(())

    def forward(self, numbers, features):
        return self.last(torch.cat([self.embeddings(features).values(), numbers], 1)) + self.shift


class NeverLearns(Model):
    def forward(self, numbers, features):
        return super().forward(numbers, features) * 0


class NeverLooksUp(Model):
    def forward(self, numbers, features):
        return self.last(torch.cat([torch.zeros(len(numbers), 8), numbers], 1))


class DrawsByItself(Model):
    def __init__(self, embeddings, num_numbers):
        super().__init__(embeddings, num_numbers)
        weights = np.random.default_rng().normal(0, 0.1, (1, 8 + num_numbers))
        self.last.weight.data = torch.tensor(weights, dtype=torch.float32)


class SavesNotAll(Model):
    def forward(self, numbers, features):
        if self.training:
            self.shift = self.shift + 0.05
        return super().forward(numbers, features)
"""
BREAKS = [
    ("NeverLearns", "test_training_lowers_the_loss"),
    ("NeverLooksUp", "test_it_has_rows_in_each_declared_table"),
    ("DrawsByItself", "test_the_seed_repeats_a_run"),
    ("DrawsByItself", "test_two_ranks_train_like_one"),
    ("SavesNotAll", "test_a_saved_model_answers_like_the_trained_one"),
    ("SavesNotAll", "test_a_run_continues_from_a_snapshot_as_if_never_interrupted"),
]


class _Kit(ModelKindTests):
    """Not named as a test class: pytest does not collect it."""


@pytest.mark.parametrize("has_processes", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("name", "test"), [("Model", None), *BREAKS], ids=lambda each: str(each).removeprefix("test_")
)
def test_the_kit_detects_a_broken_guarantee(
    name: str,
    test: str | None,
    has_processes: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_processes:
        # A second run in this process takes the place of a run on ranks.
        monkeypatch.setattr(TrainingRuns, "train_on_ranks", TrainingRuns.train)
    (tmp_path / "models_of_ones_own.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_ones_own", raising=False)
    random = np.random.default_rng(3)
    users, items = random.integers(0, 20, 400), random.integers(0, 12, 400)
    rows = [
        f"u{u},i{i},{u / 20},{(u + i) % 2}"
        for u, i in zip(users.tolist(), items.tolist(), strict=True)
    ]
    (tmp_path / "log.csv").write_text("\n".join(["user,item,price,clicked", *rows]) + "\n")
    data = {
        "kind": "table",
        "path": str(tmp_path / "log.csv"),
        "label": "clicked",
        "categorical": ["user", "item"],
        "numeric": ["price"],
        "batch_size": 32,
    }
    model = {"kind": f"models_of_ones_own:{name}", "embedding_dim": 4}
    sections = {"model": model, "data": data, "optimizer": OPTIMIZER, "framework": "torch"}
    if test is None:
        for each in {each for _, each in BREAKS}:
            (tmp_path / each).mkdir()
            getattr(_Kit(), each)(TrainingRuns(tmp_path / each, sections))
        return
    # Ranks that do not start would raise, too.
    found = "Mismatched elements" if test == "test_two_ranks_train_like_one" else None
    with pytest.raises(AssertionError, match=found):
        getattr(_Kit(), test)(TrainingRuns(tmp_path, sections))
