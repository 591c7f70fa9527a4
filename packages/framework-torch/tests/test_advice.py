"""Following the advice in a message fixes the problem."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparring_torch as st
from sparring import StepContainer, open_storage
from sparring.contracts import TableConfig
from sparring.errors import CapacityError, InvalidArgumentError, NonFiniteGradientError
from sparring_cli.application import main

IDS = torch.arange(8)


def train(module: Any, ids: Tensor = IDS, scale: float = 1.0, **settings: Any) -> st.Optimizer:
    optimizer = st.Optimizer(module, torch.optim.Adagrad, lr=0.1, **settings)
    (module(ids).sum() * scale).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def test_non_finite_gradients_are_skipped_as_the_message_advises() -> None:
    with pytest.raises(NonFiniteGradientError) as caught:
        train(st.Embedding(4), scale=torch.nan)
    (given,) = re.findall(r"choose (\w+)='(\w+)'", str(caught.value))
    train(st.Embedding(4), scale=torch.nan, **dict([given]))


@pytest.mark.parametrize("backend", ["memory", "hkv"])
def test_a_table_fits_once_the_advice_is_followed(backend: str) -> None:
    full: Any = {"backend": backend, "policy": "none"}
    with pytest.raises(CapacityError, match="Raise its capacity, or choose a policy that evicts"):
        train(st.Embedding(4, num_embeddings=256, storage=full), torch.arange(257))
    train(st.Embedding(4, num_embeddings=512, storage=full), torch.arange(257))
    evicting: Any = {"backend": backend, "policy": "lru"}
    train(st.Embedding(4, num_embeddings=256, storage=evicting), torch.arange(257))


def test_ids_of_another_dtype_are_accepted_as_the_message_converts_them() -> None:
    module = st.Embedding(4)
    ids = IDS > 3
    with pytest.raises(InvalidArgumentError) as caught:
        module(ids)
    (dtype,) = re.findall(r"convert them with \.to\(torch\.(\w+)\)", str(caught.value))
    module(ids.to(getattr(torch, dtype)))


def test_modules_of_two_containers_are_created_with_one_as_the_message_advises() -> None:
    made = nn.ModuleList(st.Embedding(4, container=StepContainer()) for _ in range(2))
    with pytest.raises(InvalidArgumentError) as caught:
        st.Optimizer(made, torch.optim.Adagrad, lr=0.1)
    (name,) = re.findall(r"pass the same (\w+)=…", str(caught.value))
    given: Any = {name: StepContainer()}
    made = nn.ModuleList(st.Embedding(4, **given) for _ in range(2))
    st.Optimizer(made, torch.optim.Adagrad, lr=0.1)


def test_a_storage_is_opened_for_the_state_that_the_message_names() -> None:
    given = open_storage("memory", TableConfig("t", 4))
    with pytest.raises(InvalidArgumentError) as caught:
        train(st.Embedding(4, name="t", storage=given))
    ((name, width),) = re.findall(r"with (\w+)=(\d+) in its TableConfig", str(caught.value))
    settings: Any = {name: int(width)}
    train(
        st.Embedding(4, name="t", storage=open_storage("memory", TableConfig("t", 4, **settings)))
    )


def test_parameters_that_are_not_tables_are_passed_to_the_optimizer_that_is_named() -> None:
    dense = nn.Linear(4, 1)
    with pytest.raises(
        InvalidArgumentError, match=r"give ordinary parameters to an .* torch\.optim"
    ):
        st.Optimizer(dense.parameters(), torch.optim.Adagrad, lr=0.1)  # type: ignore[arg-type]
    torch.optim.Adagrad(dense.parameters(), lr=0.1)


# -- `sparring train` ---------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> list[str]:
    config = {
        "threads": 1,
        "data": {
            "kind": "synthetic_criteo",
            "samples": 200,
            "test_samples": 50,
            "batch_size": 50,
            "max_ids": 100,
        },
        "model": {"kind": "dlrm", "embedding_dim": 4, "bottom_mlp": [4], "top_mlp": [4]},
        "training": {"epochs": 1},
        "storage": {"backend": "memory"},
        "snapshots": {"url": str(tmp_path / "run"), "at_end": True},
    }
    path = tmp_path / "run.yaml"
    path.write_text(json.dumps(config))
    return ["train", str(path)]


@pytest.mark.parametrize("remedy", ["resume", "elsewhere", "remove"])
def test_a_folder_with_a_run_is_resumed_or_avoided_as_the_message_advises(
    remedy: str, run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(run) == 0
    capsys.readouterr()
    assert main(run) != 0
    told = " ".join(capsys.readouterr().err.split())
    assert "resume that run (--resume), use another folder (snapshots.url=…)" in told
    assert "or remove them first" in told
    if remedy == "resume":
        run.append("--resume")
    elif remedy == "elsewhere":
        run.append(f"snapshots.url={tmp_path / 'another'}")
    else:
        shutil.rmtree(tmp_path / "run")
    assert main(run) == 0


@pytest.mark.parametrize("part", ["dense", "sparse"])
def test_a_run_with_non_finite_gradients_skips_them_as_the_message_advises(
    part: str, run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run.append(f"optimizer.{part}.lr=1e30")
    assert main(run) != 0
    told = " ".join(capsys.readouterr().err.split())
    (advice,) = re.findall(r"training\.non_finite_gradients=\w+", told)
    # It ends; whether the model is good with such a rate does not matter here.
    main([*run, advice])
    told = capsys.readouterr().err
    assert "NaN or infinity" not in told
    assert "override" not in told
