"""`ModelKindTests`: tests every promise of a kind of model of `sparring train`, or of a custom class.

Use:
    class TestMyModel(ModelKindTests):
        @pytest.fixture
        def model(self):
            return {"kind": "my_kind", "dim": 8}

Requires sparring-train and the framework. The kind must be installed, because ranks are processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

from sparring import latest_snapshot, make_plugin_manager, scan_rows
from sparring_testing.guard import find_violations
from sparring_testing.processes.mpi_launcher import MPIEXEC, needs_mpi

if TYPE_CHECKING:
    from sparring_train import RunConfig

__all__ = ["ModelKindTests"]

Sections = Mapping[str, Any]
_NUM_RANKS = 2
_EPOCHS = 3
# Importing a framework can take minutes on a busy machine.
_DEADLINE_SECONDS = 300
_RTOL, _ATOL = 1e-3, 1e-5
"""Tolerances for rows that several ranks trained in float32: sums are computed in a different order."""


class ModelKindTests:
    """Tests one `model` section by training it for some epochs on a few hundred examples.

    Random numbers must come from the framework's generator, which the run seeds. Omit random numbers
    per example, such as dropout: they depend on the number of ranks.
    """

    @pytest.fixture
    def model(self) -> Sections:
        """Required: the `model` section."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture model: the `model` section as a mapping"
        )

    @pytest.fixture
    def data(self, tmp_path: Path) -> Sections:
        """The `data` section. By default, clicks of users on items, with a price."""
        path = tmp_path / "clicks.csv"
        path.write_text(_click_log())
        return {
            "kind": "table", "path": str(path), "label": "clicked", "categorical": ["user", "item"],
            "required": ["user", "item"], "numeric": ["price"], "batch_size": 32,
        }  # fmt: skip

    @pytest.fixture
    def optimizer(self) -> Sections:
        """The `optimizer` section, with learning rates at which the model learns.

        The size of a step must grow with the gradient, as with SGD. Adam takes a full-size step even
        if the gradient consists only of rounding errors, which depend on the number of ranks.
        """
        return {"sparse": {"name": "sgd", "lr": 1.0}, "dense": {"name": "sgd", "lr": 0.1}}

    @pytest.fixture
    def framework(self) -> str:
        """Framework that trains the model."""
        return "torch"

    @pytest.fixture
    def trainings(
        self, model: Sections, data: Sections, optimizer: Sections, framework: str, tmp_path: Path
    ) -> TrainingRuns:
        """Training runs of this model on these data. Subclasses do not override it."""
        sections = {"model": model, "data": data, "optimizer": optimizer, "framework": framework}
        return TrainingRuns(tmp_path, sections)

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), ModelKindTests)
        assert not violations, "\n".join(violations)

    def test_it_has_rows_in_each_declared_table(self, trainings: TrainingRuns) -> None:
        config = trainings.config("run")
        asked = [table.name for table in config.model.tables(config.data.columns)]
        assert len(set(asked)) == len(asked)
        rows = trainings.train("run").rows
        assert sorted(rows) == sorted(asked)
        assert all(rows.values()), f"tables without rows were declared but never looked up: {rows}"

    def test_training_lowers_the_loss(self, trainings: TrainingRuns) -> None:
        losses = trainings.train("run").losses
        steps = len(losses) // _EPOCHS
        assert np.mean(losses[-steps:]) < np.mean(losses[:steps])

    def test_the_seed_repeats_a_run(self, trainings: TrainingRuns) -> None:
        first, second = trainings.train("first"), trainings.train("second")
        assert first.losses == second.losses
        assert first.metrics == second.metrics

    def test_a_saved_model_answers_like_the_trained_one(self, trainings: TrainingRuns) -> None:
        trained = trainings.train("run")
        assert trainings.evaluate_saved("run") == pytest.approx(trained.metrics, rel=1e-5)

    def test_a_run_continues_from_a_snapshot_as_if_never_interrupted(
        self, trainings: TrainingRuns
    ) -> None:
        whole = trainings.train("whole")
        first = trainings.train("parts", epochs=1)
        rest = trainings.train("parts", resumes=True)
        assert [*first.losses, *rest.losses] == pytest.approx(whole.losses, rel=1e-5)
        trainings.check_equal_rows("whole", "parts")

    def test_two_ranks_train_like_one(self, trainings: TrainingRuns) -> None:
        trainings.train("alone")
        trainings.train_on_ranks("ranks")
        trainings.check_equal_rows("alone", "ranks")
        alone, ranks = (trainings.evaluate_saved(name) for name in ("alone", "ranks"))
        assert ranks == pytest.approx(alone, rel=1e-2, abs=1e-2)


def _click_log() -> str:
    random = np.random.default_rng(3)
    users, items = random.integers(0, 20, 400), random.integers(0, 12, 400)
    rows = zip(users, items, random.random(400), strict=True)
    lines = [f"u{user},i{item},{price:.3f},{(user + item) % 2}" for user, item, price in rows]
    return "\n".join(["user,item,price,clicked", *lines]) + "\n"


@dataclass(slots=True)
class RunResult:
    """Results of a finished run; it implements `Progress`."""

    losses: list[float] = field(default_factory=list)
    """Loss of each step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    def on_start(self, total_steps: int | None) -> None: ...

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self.losses.append(loss)

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_snapshot(self, step: int, url: str) -> None: ...

    def on_end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """Training runs in a folder. The snapshots of each run are in a subfolder with its name."""

    folder: Path
    sections: Sections

    def config(self, name: str, *, epochs: int = _EPOCHS, resumes: bool = False) -> RunConfig:
        """Returns the configuration of a run, parsed as `sparring train` parses it."""
        from sparring_train import parse_config

        text = self._text(name, epochs, resumes)
        return parse_config(text, plugin_manager=make_plugin_manager())

    def train(self, name: str, *, epochs: int = _EPOCHS, resumes: bool = False) -> RunResult:
        """Trains in this process."""
        from sparring_train import find_trainer

        ran, manager = RunResult(), make_plugin_manager()
        config = self.config(name, epochs=epochs, resumes=resumes)
        result = find_trainer(config.framework, manager).train(config, manager, ran)
        ran.metrics, ran.rows = result.metrics, result.rows
        return ran

    def train_on_ranks(self, name: str) -> None:
        """Trains in two processes, which the framework's launcher starts."""
        path = self.folder / f"{name}.yaml"
        path.write_text(self._text(name, _EPOCHS, False))
        if self.sections["framework"] == "torch":
            agent = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
            launcher = [sys.executable, *agent, "--nproc-per-node", str(_NUM_RANKS)]
        else:
            if needs_mpi.args[0]:
                pytest.skip(needs_mpi.kwargs["reason"])
            launcher = [MPIEXEC, "-n", str(_NUM_RANKS), sys.executable]
        paths = os.pathsep.join(each for each in sys.path if each)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        done = subprocess.run(
            [*launcher, "-m", "sparring", "train", str(path)],
            env={**environment, "PYTHONPATH": paths},
            timeout=_DEADLINE_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]

    def evaluate_saved(self, name: str) -> Mapping[str, float]:
        """Evaluates the model in the newest snapshot of a run and returns its metrics."""
        from sparring_train import evaluate_model, open_run

        snapshot = latest_snapshot(self.folder / name)
        assert snapshot is not None
        # A model of a class is imported only if the command names it, too.
        kind = f"model.kind={self.sections['model']['kind']}"
        with open_run(snapshot, [kind], make_plugin_manager()) as (_, model):
            found: Mapping[str, float] = evaluate_model(model)
            return found

    def check_equal_rows(self, one: str, two: str) -> None:
        """Checks that the newest snapshots of two runs have equal rows, except for rounding."""
        first, second = self._rows(one), self._rows(two)
        assert first.keys() == second.keys()
        for table, (keys, rows) in first.items():
            others, other_rows = second[table]
            np.testing.assert_array_equal(keys, others, err_msg=f"keys of table {table}")
            np.testing.assert_allclose(rows, other_rows, _RTOL, _ATOL, err_msg=f"table {table}")

    def _rows(self, name: str) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Returns the sorted keys and the rows of each table."""
        snapshot = latest_snapshot(self.folder / name)
        assert snapshot is not None
        found = {}
        for table in snapshot.tables:
            chunks = list(scan_rows(snapshot, table))
            keys = np.concatenate([each.keys for each in chunks])
            order = np.argsort(keys)
            found[table] = keys[order], np.concatenate([each.rows for each in chunks])[order]
        return found

    def _text(self, name: str, epochs: int, resumes: bool) -> str:
        """Returns the configuration as JSON, which is valid YAML."""
        snapshots = {"url": str(self.folder / name), "resume": resumes}
        more = {"seed": 5, "threads": 1, "storage": {"backend": "memory"}}
        run = {"training": {"epochs": epochs}, "snapshots": snapshots}
        return json.dumps({**more, **self.sections, **run})
