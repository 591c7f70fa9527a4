"""`ModelKindTests`: what every kind of model of `sparring train` promises, and every class of one's own.

Use:
    class TestMyModel(ModelKindTests):
        @pytest.fixture
        def model(self):
            return {"kind": "my_kind", "dim": 8}

It needs sparring-train and the framework. A kind must be installed, for ranks are processes.
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
# Importing a framework on a busy machine.
_DEADLINE_SECONDS = 300
_RTOL, _ATOL = 1e-3, 1e-5
"""Accuracy of rows that ranks trained: in float32, of sums in another order."""


class ModelKindTests:
    """Tests of one `model` section. Each trains it for some epochs on a few hundred examples.

    What it draws must come from the framework's generator, which the run has seeded. What is drawn for
    each example, as dropout is, depends on the number of ranks: leave it out here.
    """

    @pytest.fixture
    def model(self) -> Sections:
        """The `model` section."""
        raise NotImplementedError("define the fixture model")

    @pytest.fixture
    def data(self, tmp_path: Path) -> Sections:
        """The `data` section: clicks of users on items of their own kind, and a price."""
        path = tmp_path / "clicks.csv"
        path.write_text(_click_log())
        return {
            "kind": "table", "path": str(path), "label": "clicked", "categorical": ["user", "item"],
            "required": ["user", "item"], "numeric": ["price"], "batch_size": 32,
        }  # fmt: skip

    @pytest.fixture
    def optimizer(self) -> Sections:
        """The `optimizer` section: steps with which it learns.

        Their size must grow with the gradient's, as those of SGD. Adam makes a step as large as any of a
        gradient that is nothing but rounding, which depends on the number of ranks.
        """
        return {"sparse": {"name": "sgd", "lr": 1.0}, "dense": {"name": "sgd", "lr": 0.1}}

    @pytest.fixture
    def framework(self) -> str:
        """The framework that trains it."""
        return "torch"

    @pytest.fixture
    def trainings(
        self, model: Sections, data: Sections, optimizer: Sections, framework: str, tmp_path: Path
    ) -> TrainingRuns:
        """Runs of this model on these data; not for others to define."""
        sections = {"model": model, "data": data, "optimizer": optimizer, "framework": framework}
        return TrainingRuns(tmp_path, sections)

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), ModelKindTests)
        assert not violations, "\n".join(violations)

    def test_it_has_rows_in_each_table_that_it_asks_for(self, trainings: TrainingRuns) -> None:
        config = trainings.config("run")
        asked = [table.name for table in config.model.tables(config.data.columns)]
        assert len(set(asked)) == len(asked)
        rows = trainings.train("run").rows
        assert sorted(rows) == sorted(asked)
        assert all(rows.values()), f"a table was asked for and never looked up: {rows}"

    def test_training_lowers_the_loss(self, trainings: TrainingRuns) -> None:
        losses = trainings.train("run").losses
        steps = len(losses) // _EPOCHS
        assert np.mean(losses[-steps:]) < np.mean(losses[:steps])

    def test_the_seed_repeats_a_run(self, trainings: TrainingRuns) -> None:
        first, second = trainings.train("first"), trainings.train("second")
        assert first.losses == second.losses
        assert first.metrics == second.metrics

    def test_a_saved_model_answers_as_the_trained_one(self, trainings: TrainingRuns) -> None:
        trained = trainings.train("run")
        assert trainings.evaluate_saved("run") == pytest.approx(trained.metrics, rel=1e-5)

    def test_a_run_goes_on_from_a_snapshot_as_if_it_had_not_ended(
        self, trainings: TrainingRuns
    ) -> None:
        whole = trainings.train("whole")
        first = trainings.train("parts", epochs=1)
        rest = trainings.train("parts", resumes=True)
        assert [*first.losses, *rest.losses] == pytest.approx(whole.losses, rel=1e-5)
        trainings.check_equal_rows("whole", "parts")

    def test_two_ranks_train_as_one(self, trainings: TrainingRuns) -> None:
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
    """A run that has ended: the `Progress` that it told."""

    losses: list[float] = field(default_factory=list)
    """Of each step."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    def on_start(self, total_steps: int | None) -> None: ...

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self.losses.append(loss)

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None: ...

    def on_message(self, message: str) -> None: ...

    def on_end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """Runs in a folder, each with its snapshots in a folder of its name."""

    folder: Path
    sections: Sections

    def config(self, name: str, *, epochs: int = _EPOCHS, resumes: bool = False) -> RunConfig:
        """The configuration of a run, as `sparring train` reads it."""
        from sparring_train import parse_config

        text = self._text(name, epochs, resumes)
        return parse_config(text, plugin_manager=make_plugin_manager())

    def train(self, name: str, *, epochs: int = _EPOCHS, resumes: bool = False) -> RunResult:
        """A run by this process."""
        from sparring_train import find_trainer

        ran, manager = RunResult(), make_plugin_manager()
        config = self.config(name, epochs=epochs, resumes=resumes)
        result = find_trainer(config.framework, manager).train(config, manager, ran)
        ran.metrics, ran.rows = result.metrics, result.rows
        return ran

    def train_on_ranks(self, name: str) -> None:
        """The same by two processes, which the framework's launcher starts."""
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
        """Metrics of the model in the newest snapshot of a run."""
        from sparring_train import evaluate_model, open_run

        snapshot = latest_snapshot(self.folder / name)
        assert snapshot is not None
        with open_run(snapshot, (), make_plugin_manager()) as (_, model):
            found: Mapping[str, float] = evaluate_model(model)
            return found

    def check_equal_rows(self, one: str, two: str) -> None:
        """Rows of the newest snapshots of two runs are equal, but for rounding."""
        first, second = self._rows(one), self._rows(two)
        assert first.keys() == second.keys()
        for table, (keys, rows) in first.items():
            others, other_rows = second[table]
            np.testing.assert_array_equal(keys, others, err_msg=f"keys of table {table}")
            np.testing.assert_allclose(rows, other_rows, _RTOL, _ATOL, err_msg=f"table {table}")

    def _rows(self, name: str) -> dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]:
        """Table → its keys, in order, and their rows."""
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
        """JSON, which is YAML."""
        snapshots = {"url": str(self.folder / name), "resume": resumes}
        more = {"seed": 5, "threads": 1, "storage": {"backend": "memory"}}
        run = {"training": {"epochs": epochs}, "snapshots": snapshots}
        return json.dumps({**more, **self.sections, **run})
