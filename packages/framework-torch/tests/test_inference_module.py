"""Modules for inference: quantized tables, and rows of serving snapshots and of services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError, PluginError, SnapshotError, UnsupportedError
from sparring_torch import (
    DistributedModelParallel,
    Embedding,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    Optimizer,
    PoolingType,
    inference_module,
    quantize_embeddings,
)

sparring_packed: Any = pytest.importorskip(
    "sparring_packed", reason="sparring-packed is not installed"
)
if not sparring_packed.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)

IDS = torch.randint(0, 60, (600,), generator=torch.Generator().manual_seed(0))
BATCH = KeyedJaggedTensor(["user", "item"], IDS, lengths=torch.full((200,), 3))
# Maximum rounding error of a sum of 6 dequantized elements, for rows within 1.
MOST = {"fp32": 0.0, "fp16": 0.006, "bf16": 0.05, "int8": 0.05, "int4": 0.8}


class Model(nn.Module):
    """Bags, sequences, a single table, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        mean, half = PoolingType.MEAN, torch.float16
        self.bags = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(name="user", embedding_dim=64),
                EmbeddingBagConfig(name="item", embedding_dim=7, pooling=mean, data_type=half),
            ]
        )
        self.sequences = EmbeddingCollection(
            [EmbeddingConfig(name="word", embedding_dim=8, feature_names=["item"])]
        )
        self.single = Embedding(16, name="single", seed=3)
        self.dense = nn.Linear(64 + 7, 1)

    def forward(self, batch: KeyedJaggedTensor) -> tuple[Tensor, ...]:
        pooled = self.bags(batch)
        words = self.sequences(batch.permute([1]))["item"].values()
        singles = self.single(batch["user"].values())
        return self.dense(pooled.values()), pooled.values(), words, singles


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    made = Model()
    optimizer = Optimizer(made, torch.optim.Adagrad, lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        sum(each.sin().sum() for each in made(BATCH)).backward()
        optimizer.step()
    return made.eval()


def outputs(model: nn.Module, batch: KeyedJaggedTensor = BATCH) -> list[Tensor]:
    with torch.no_grad():
        return list(model(batch))


@pytest.mark.parametrize("dtype", MOST)
def test_outputs_equal_the_model_up_to_rounding(model: Model, dtype: str) -> None:
    expected = outputs(model)
    quantized = quantize_embeddings(model, dtype)
    given = outputs(quantized)
    assert all(
        (ours - theirs).abs().max() <= MOST[dtype]
        for ours, theirs in zip(given, expected, strict=True)
    )
    # Layers are equal, and so are the ids with rows, and the initial values of others.
    assert type(quantized.bags) is EmbeddingBagCollection
    assert quantized.bags.num_rows() == model.bags.num_rows()
    unseen = KeyedJaggedTensor(["user", "item"], IDS + 100, lengths=torch.full((200,), 3))
    for ours, theirs in zip(outputs(quantized, unseen), outputs(model, unseen), strict=True):
        assert torch.equal(ours, theirs)


def test_the_original_model_continues_to_train_and_the_copy_is_unchanged(model: Model) -> None:
    quantized = quantize_embeddings(model, torch.qint8)
    before, trained = outputs(quantized), outputs(model)
    optimizer = Optimizer(model.train(), torch.optim.Adagrad, lr=0.3)
    sum(each.sin().sum() for each in model(BATCH)).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert all(map(torch.equal, outputs(quantized), before))
    assert not torch.equal(outputs(model.eval())[1], trained[1])


def test_it_changes_no_row_and_cannot_be_trained(model: Model) -> None:
    quantized = quantize_embeddings(model, torch.qint8).train()
    before = outputs(quantized)
    for _ in range(2):  # in training mode, if nothing applies gradients of rows
        quantized(BATCH)[0].sum().backward()
    assert all(map(torch.equal, outputs(quantized), before))
    with pytest.raises(InvalidArgumentError, match="rows with 0 elements of state"):
        Optimizer(quantized, torch.optim.Adagrad, lr=0.3)


def test_tables_may_differ_in_dtype(model: Model) -> None:
    quantized = quantize_embeddings(model, "fp32", per_table_weight_dtype={"word": torch.quint4x2})
    expected, given = outputs(model), outputs(quantized)
    assert [torch.equal(*each) for each in zip(given, expected, strict=True)] == [
        True, True, False, True,
    ]  # fmt: skip


def test_in_place_conversion_returns_the_same_module(model: Model) -> None:
    expected = outputs(quantize_embeddings(model, "int8"))
    made = quantize_embeddings(model, "int8", True)
    assert made is model
    assert all(map(torch.equal, outputs(made), expected))


def test_wrappers_of_ranks_are_removed(model: Model) -> None:
    wrapped = DistributedModelParallel(Model())
    made = quantize_embeddings(wrapped, "int8", output_dtype=torch.float64)
    assert type(made) is Model
    assert made.bags(BATCH).values().dtype is torch.float64


def test_no_file_is_left_behind(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    quantized = quantize_embeddings(model, "int4")
    assert not list(tmp_path.iterdir())
    assert outputs(quantized)


def test_it_reads_serving_snapshots(model: Model, tmp_path: Path) -> None:
    model.bags.agent.container.save(f"{tmp_path}/run")
    sparring_packed.write(tmp_path / "run", tmp_path / "served/step-1")
    storage = {"backend": "packed", "path": str(tmp_path / "served")}
    served = inference_module(model, storage)
    # Embeddings in the dtype of training are bit-identical.
    assert all(map(torch.equal, outputs(served), outputs(model)))
    compiled = torch.compile(served, fullgraph=True, backend="eager")
    assert all(map(torch.equal, outputs(compiled), outputs(served)))


def test_errors_leave_the_module_unchanged(model: Model, tmp_path: Path) -> None:
    agent, before = model.bags.agent, outputs(model)
    for dtype, tables, match in (
        (torch.int64, {}, "found dtype torch.int64 .* expected one of fp32"),
        (
            "int8",
            {"itm": "int4"},
            "found unknown table 'itm' in per_table_weight_dtype; did you mean 'item'",
        ),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            quantize_embeddings(model, dtype, True, per_table_weight_dtype=tables)
    with pytest.raises(UnsupportedError, match="the storage 'hkv' does not support quantization"):
        quantize_embeddings(model, "int8", True, backend="hkv")
    with pytest.raises(PluginError, match="packd"):
        inference_module(model, "packd", inplace=True)
    with pytest.raises(InvalidArgumentError, match="'hkv', which starts without rows"):
        inference_module(model, "hkv", inplace=True)
    with pytest.raises(SnapshotError, match="no serving snapshot"):
        inference_module(model, {"backend": "packed", "path": str(tmp_path)}, inplace=True)
    with pytest.raises(InvalidArgumentError, match="found no table in 1 modules"):
        quantize_embeddings(nn.Linear(2, 2), "int8")
    model.single.agent.container.assign("single", torch.tensor([7]).numpy(), [[1e6] * 16])
    with pytest.raises(InvalidArgumentError, match="id 7 of table single"):
        quantize_embeddings(model, "int8", True)
    assert model.bags.agent is agent
    assert torch.equal(outputs(model)[1], before[1])
