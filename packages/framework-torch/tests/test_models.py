"""Models: shapes, losses, and TorchRec's results if TorchRec is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.lookup.row_gradients import dense_parameters
from sparring_torch.models import (
    DLRM,
    DLRM_DCN,
    Batch,
    DeepFM,
    DLRM_Projection,
    DLRMTrain,
    MatrixFactorization,
    TwoTower,
    TwoTowerTrainTask,
)
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

KEYS = ["f1", "f3", "f2"]
VALUES = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 1, 1])
LENGTHS = torch.tensor([2, 1, 0, 3, 1, 3])
NUMBERS = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]])


def collection(dims: tuple[int, int] = (4, 4), **settings: Any) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name="t1", embedding_dim=dims[0], feature_names=["f1", "f3"], initializer="xavier"
        ),
        EmbeddingBagConfig(
            name="t2", embedding_dim=dims[1], feature_names=["f2"], initializer="xavier"
        ),
    ]
    return EmbeddingBagCollection(tables, storage="memory", **settings)


def features() -> KeyedJaggedTensor:
    return KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS)


def two_features() -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name=name, embedding_dim=4, initializer="xavier")
        for name in ("query", "candidate")
    ]
    return EmbeddingBagCollection(tables, storage="memory")


def pairs(count: int = 8) -> Batch:
    ids = torch.arange(count)
    kjt = KeyedJaggedTensor(
        ["query", "candidate"],
        torch.cat([ids, 3 * ids]),
        lengths=torch.ones(2 * count, dtype=torch.int64),
    )
    return Batch(torch.zeros(count, 0), kjt, (ids % 2).float())


def test_matrix_factorization_keeps_the_settings_of_its_tables() -> None:
    tables = [
        TableConfig(name, 4, seed=3, placement="replicated", initializer="zeros")
        for name in ("user", "item")
    ]
    with StepContainer() as container:
        MatrixFactorization(*tables, mean=0.0, storage="memory", container=container)
        assert list(container.tables.values()) == tables


def test_an_old_state_without_a_mean_does_not_change_the_mean_of_the_model() -> None:
    def made(mean: float) -> MatrixFactorization:
        tables = [TableConfig(name, 4) for name in ("user", "item")]
        return MatrixFactorization(*tables, mean=mean, storage="memory")

    state = made(2.0).state_dict()
    model = made(3.5)
    model.load_state_dict({name: each for name, each in state.items() if name != "mean"})
    assert model.mean == 3.5
    model.load_state_dict(state)
    assert model.mean == 2.0


def test_dlrm_reads_all_dot_products_of_pairs() -> None:
    model = DLRM(collection(), 3, [4], [5, 1]).eval()
    seen: list[Tensor] = []
    model.over_arch.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    assert model(NUMBERS, features()).shape == (2, 1)
    dense = model.dense_arch(NUMBERS)
    vectors = [dense, *model.sparse_arch(features()).unbind(1)]
    wanted = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i + 1, 4)]
    assert torch.allclose(seen[0], torch.cat([dense, torch.stack(wanted, 1)], 1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DLRM(collection((4, 2)), 3, [4], [1]), r"one embedding_dim, .* found \[2, 4\]"),
        (lambda: DLRM(collection(), 3, [8], [1]), r"must end in 4, .* found \[8\]"),
        (lambda: DLRM_DCN(collection(), 3, [8], [1], 1, 1), r"DLRM_DCN: .* must end in 4"),
        (
            lambda: DLRM_Projection(collection(), 3, [4], [1], [8], [6]),
            r"interaction_branch2_layer_sizes must end in a multiple of 4, .* found \[6\]",
        ),
        (lambda: DeepFM(3, collection((4, 2)), 5, 2), "DeepFM: all tables must"),
        (lambda: TwoTower(collection(), [4]), "two tables of one feature each"),
    ],
)
def test_a_model_that_does_not_match_its_tables_is_rejected(
    make: Callable[[], nn.Module], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


@pytest.mark.parametrize("kind", ["dlrm", "dcn", "projection", "two_tower"])
def test_a_model_with_its_loss_learns(kind: str) -> None:
    torch.manual_seed(1)
    model: nn.Module
    if kind != "two_tower":
        inner: Any = {
            "dlrm": lambda: DLRM(collection(), 3, [4], [8, 1]),
            "dcn": lambda: DLRM_DCN(collection(), 3, [4], [8, 1], 2, 3),
            "projection": lambda: DLRM_Projection(collection(), 3, [4], [8, 1], [8], [12]),
        }[kind]()
        model = DLRMTrain(inner)
        batch = Batch(NUMBERS, features(), torch.tensor([0.0, 1.0]))
    else:
        model = TwoTowerTrainTask(TwoTower(two_features(), [8, 8]))
        batch = pairs()
    optimizers = [
        Optimizer(model, torch.optim.Adagrad, lr=0.5),
        torch.optim.Adam(model.parameters(), lr=0.02),
    ]
    losses = []
    for _ in range(40):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss, (detached, logits, labels) = model(batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert not detached.requires_grad
        assert logits.shape == labels.shape == batch.labels.shape
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]


def test_empty_batches_have_empty_results() -> None:
    empty = KeyedJaggedTensor(KEYS, VALUES[:0], lengths=LENGTHS[:0])
    for model in (
        DLRM(collection(), 3, [4], [1]),
        DLRM_DCN(collection(), 3, [4], [1], 2, 3),
        DLRM_Projection(collection(), 3, [4], [1], [8], [12]),
        DeepFM(3, collection(), 5, 2),
    ):
        assert model.eval()(NUMBERS[:0], empty).shape == (0, 1)


@pytest.mark.parametrize("kind", ["dlrm", "projection", "deepfm"])
def test_results_equal_torchrec(kind: str) -> None:
    torchrec = pytest.importorskip("torchrec", reason="TorchRec is a peer of benchmarks only")
    tables = [
        torchrec.EmbeddingBagConfig(
            name=name, embedding_dim=4, num_embeddings=10, feature_names=names
        )
        for name, names in (("t1", ["f1", "f3"]), ("t2", ["f2"]))
    ]
    theirs_bags = torchrec.EmbeddingBagCollection(tables=tables)
    ours, theirs = _models(kind, torchrec, collection(), theirs_bags)
    every_id = KeyedJaggedTensor(
        KEYS,
        torch.arange(10).repeat(3),
        lengths=torch.ones(30, dtype=torch.int64),
    )
    rows = ours.eval().sparse_arch.embedding_bag_collection(every_id)
    with torch.no_grad():
        for name, key in (("t1", "f1"), ("t2", "f2")):
            theirs_bags.embedding_bags[name].weight.copy_(rows[key])
        dense = [each for name, each in theirs.named_parameters() if "sparse_arch" not in name]
        for mine, other in zip([each for _, each in dense_parameters(ours)], dense, strict=True):
            other.copy_(mine)
        wanted = theirs(NUMBERS, torchrec.KeyedJaggedTensor(KEYS, VALUES, lengths=LENGTHS))
        assert torch.allclose(ours(NUMBERS, features()), wanted, atol=1e-6)


def _models(kind: str, torchrec: Any, bags: Any, theirs: Any) -> tuple[Any, Any]:
    from torchrec.models import deepfm, dlrm

    settings: dict[str, Any] = {
        "dense_in_features": 3,
        "dense_arch_layer_sizes": [6, 4],
        "over_arch_layer_sizes": [5, 1],
    }
    if kind == "dlrm":
        return DLRM(bags, **settings), dlrm.DLRM(theirs, **settings)
    if kind == "projection":
        settings |= {
            "interaction_branch1_layer_sizes": [5, 8],
            "interaction_branch2_layer_sizes": [12],
        }
        return DLRM_Projection(bags, **settings), dlrm.DLRM_Projection(theirs, **settings)
    settings = {"num_dense_features": 3, "hidden_layer_size": 6, "deep_fm_dimension": 5}
    return (
        DeepFM(embedding_bag_collection=bags, **settings),
        deepfm.SimpleDeepFMNN(embedding_bag_collection=theirs, **settings),
    )
