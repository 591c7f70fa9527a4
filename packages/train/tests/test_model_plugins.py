"""The kind of model on the page trains, as a plugin, in both frameworks."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from sparring import make_plugin_manager
from sparring.plugins.distributions import PluginSource
from sparring_testing.fixtures.runs import train_run
from sparring_train.run.result import TrainResult

PAGE = (Path(__file__).parents[3] / "docs/how-to/bring-data-or-a-model.md").read_text()


# Framework → replacements in the code of the page that make its model return probabilities.
SIGMOIDS = {
    "torch": ("values().sum(1)", "values().sum(1).sigmoid()"),
    "tensorflow": ("training=training).values()))", "training=training).values())) * 0.01 + 0.5"),
}
FRAMEWORKS = pytest.mark.parametrize(
    ("framework", "package"), [("torch", "sparring_torch"), ("tensorflow", "tensorflow")]
)


@FRAMEWORKS
def test_the_kind_of_the_page_trains(
    framework: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package, reason=f"needs {package}")
    result = trained_kind(framework, code_of_page(), tmp_path, monkeypatch)
    assert result.metrics["auc"] > 0.95
    assert set(result.rows) == {"user", "item"}


@FRAMEWORKS
def test_a_model_that_returns_probabilities_is_reported(
    framework: str,
    package: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip(package, reason=f"needs {package}")
    code = code_of_page()
    trained_kind(framework, code, tmp_path, monkeypatch)
    assert "look like probabilities" not in caplog.text
    monkeypatch.undo()
    changed = code.replace(*SIGMOIDS[framework])
    assert changed != code
    trained_kind(framework, changed, tmp_path, monkeypatch)
    (record,) = (each for each in caplog.records if "look like probabilities" in each.message)
    assert "model.kind: sum returned numbers from 0." in record.message
    assert "Remove the sigmoid" in record.message


def code_of_page() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    (code,) = (each for each in blocks if "class SumModel" in each)
    return code


def trained_kind(
    framework: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> TrainResult:
    module = types.ModuleType("summing")
    monkeypatch.setitem(sys.modules, "summing", module)
    exec(code, module.__dict__)
    manager = make_plugin_manager()
    manager.load(PluginSource("sum", "sum-model", "1", lambda: module))
    path = tmp_path / "clicks.csv"
    path.write_text("user,item,clicked\n" + "ann,shoe,1\nbob,hat,0\nann,hat,0\n" * 64)
    return train_run(
        f"""
framework: {framework}
threads: 1
data: {{kind: table, path: {path}, label: clicked, categorical: [user, item], batch_size: 32}}
model: {{kind: sum}}
storage: {{backend: memory}}
optimizer: {{sparse: {{name: adagrad, lr: 0.5}}}}
training: {{epochs: 4}}
""",
        manager=manager,
    )
