"""Custom update methods: passed as objects, and named in configurations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
import torch

from sparring.contracts import HyperParameters, UpdateMethod, UpdateRows
from sparring.errors import InvalidArgumentError
from sparring_cli.application import main
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

STORAGES = ["hkv", "memory"]
DIM = 6


def bag(storage: Any = "hkv", **options: Any) -> EmbeddingBag:
    return EmbeddingBag(DIM, mode="sum", name="t", dtype=torch.float64, storage=storage, **options)


class SignHyper(HyperParameters):
    stretch: float = 1.0


class Sign(UpdateMethod):
    """Moves by the sign of the gradient, and counts the steps of each row."""

    name = "sign"
    hyperparameters = SignHyper

    def state_width(self, dim: int) -> int:
        return 1

    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        assert isinstance(hyper, SignHyper)
        rows.embeddings[:] -= hyper.lr * hyper.stretch * np.sign(rows.gradients)
        rows.state[:] += rows.step


class Replacing(Sign):
    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        rows.embeddings = rows.embeddings - hyper.lr * rows.gradients


class InPlace(Sign):
    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        rows.embeddings -= hyper.lr * rows.gradients
        rows.state += 1


def test_a_method_must_write_into_its_arrays() -> None:
    ids = torch.tensor([[1]])
    for method, is_right in ((InPlace(), True), (Replacing(), False)):
        made = bag()
        optimizer = Optimizer(made, method, lr=0.5)
        before = made(ids).detach().clone()
        made(ids).sum().backward()
        if is_right:
            optimizer.step()
            optimizer.zero_grad()
            torch.testing.assert_close(made(ids), before - 0.5)
            continue
        with pytest.raises(InvalidArgumentError, match=r"'sign' replaced the array"):
            optimizer.step()
        assert made.num_rows() == {"t": 0}
        assert optimizer.state_dict()["state"] == {"t": {"step": 0}}


@pytest.mark.parametrize("clip", [{"clip_value": 0.5}, {"clip_norm": 1.0}])
def test_methods_in_numpy_get_clipped_gradients(clip: dict[str, float]) -> None:
    made = bag()
    optimizer = Optimizer(made, InPlace(), lr=1.0, **clip)
    ids = torch.tensor([[1], [1]])
    before = made(ids).detach().clone()
    (made(ids) * 3.0).sum().backward()  # summed over the bags before: 6
    optimizer.step()
    optimizer.zero_grad()
    move = 0.5 if "clip_value" in clip else DIM**-0.5
    torch.testing.assert_close(made(ids), before - move)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_method_in_numpy_is_an_update_method(storage: str) -> None:
    made = bag(storage)
    optimizer = Optimizer(made, Sign(), lr=0.5, stretch=2.0, clip_norm=1.0)
    ids = torch.tensor([[1], [2]])
    before = made(ids).detach().clone()
    for _ in range(2):
        (made(ids) * torch.tensor([[-3.0], [4.0]], dtype=torch.float64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    move = torch.tensor([[2.0], [-2.0]], dtype=torch.float64)
    torch.testing.assert_close(made(ids), before + move)
    state = optimizer.container.storage("t").find([1, 2]).rows[:, DIM:]
    assert state.tolist() == [[3.0], [3.0]]
    with pytest.raises(InvalidArgumentError, match="'sign' has no hyper-parameter 'strech'; did"):
        Optimizer(bag(), Sign(), strech=1.0)


# -- by name, from a plugin --------------------------------------------------------------

PLUGIN = """
    import numpy as np

    from sparring.contracts import (
        API_VERSION, HyperParameters, UpdateMethod, UpdateMethodDescriptor, hookimpl
    )


    class SignHyper(HyperParameters):
        stretch: float = 1.0


    class AcmeSign(UpdateMethod):
        name = "acme_sign"
        hyperparameters = SignHyper

        def state_width(self, dim):
            return 2

        def update(self, rows, hyper):
            rows.embeddings -= hyper.lr * hyper.stretch * np.sign(rows.gradients)
            rows.state += 1


    @hookimpl
    def sparring_register_update_methods():
        return [
            UpdateMethodDescriptor(
                name="{name}", api_version={version}, summary="Signs.", options=SignHyper,
                factory=AcmeSign,
            )
        ]
"""
RUN = """
data: {kind: synthetic_criteo, samples: 4000, test_samples: 500, batch_size: 500, max_ids: 300}
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8, 4], top_mlp: [8]}
"""


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, name: str = "acme_sign", version: str = ""
) -> None:
    """A distribution with one plugin, as pip would install it, on ``sys.path`` for one test."""
    metadata = folder / "acme_methods-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-methods\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[sparring]\nacme = acme_methods\n")
    source = PLUGIN.replace("{name}", name).replace("{version}", version or "API_VERSION")
    (folder / "acme_methods.py").write_text(dedent(source))
    (folder / "run.yaml").write_text(RUN)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "acme_methods", raising=False)


def train(
    folder: Path, capsys: pytest.CaptureFixture[str], *settings: str
) -> tuple[int, dict[str, Any], str]:
    status = main(["train", str(folder / "run.yaml"), *settings, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out.splitlines()[-1]) if status == 0 else {}, err


def test_a_configuration_names_the_method_of_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, monkeypatch)
    name = "optimizer.sparse.name=acme_sign"
    losses = {}
    for stretch in (0.0, 1.0):
        sizes = ["optimizer.sparse.lr=0.01", f"optimizer.sparse.stretch={stretch}"]
        status, result, _ = train(tmp_path, capsys, name, *sizes)
        assert (status, result["steps"]) == (0, 8)
        assert sum(result["rows"].values()) > 100
        losses[stretch] = result["metrics"]["log_loss"]
    assert losses[0.0] != losses[1.0]
    status, _, message = train(tmp_path, capsys, name, "optimizer.sparse.strech=2")
    assert status == 2
    assert "'acme_sign' has no hyper-parameter 'strech'; did you mean 'stretch'" in message


@pytest.mark.parametrize(
    ("given", "name", "reason"),
    [
        pytest.param({"version": "(99, 0)"}, "acme_sign", "acme-methods 1.0", id="version"),
        pytest.param({"name": "adam"}, "adam", "more than one distribution", id="name taken"),
        pytest.param(
            {"name": "signs"},
            "signs",
            "a sparring.contracts.UpdateMethod of",
            id="misnamed",
        ),
    ],
)
def test_a_method_of_a_plugin_that_cannot_be_used_is_an_error_of_the_configuration(
    given: dict[str, str],
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(tmp_path, monkeypatch, **given)
    status, _, message = train(tmp_path, capsys, f"optimizer.sparse.name={name}")
    assert status != 0
    assert reason in message
