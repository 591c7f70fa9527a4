"""`EmbeddingCollection`, and the replacements of `torch.nn.Embedding` and `torch.nn.EmbeddingBag`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels.functions import initial_rows
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingConfig
from sparring_torch.optim.optimizer import Optimizer

DIM = 3


def initial(table: str, ids: list[int]) -> Tensor:
    return torch.from_numpy(initial_rows(ids, TableConfig(table, DIM))).to(
        torch.get_default_device()
    )


def test_a_collection_gives_one_embedding_for_each_id(place: Any) -> None:
    tables = [
        EmbeddingConfig(name="items", embedding_dim=DIM, feature_names=["viewed", "bought"]),
        EmbeddingConfig(name="places", embedding_dim=DIM, feature_names=["bought"]),
    ]
    ec = EmbeddingCollection(tables=tables, **place.table)
    out = ec(KeyedJaggedTensor(["viewed", "bought"], [7, 8, 7], lengths=[2, 0, 0, 1]))
    assert list(out) == ["viewed", "bought@items", "bought@places"]
    assert ec.embedding_names_by_table() == [["viewed", "bought@items"], ["bought@places"]]
    assert out["viewed"].lengths().tolist() == [2, 0]
    torch.testing.assert_close(out["viewed"].values(), initial("items", [7, 8]))
    assert out["bought@items"].lengths().tolist() == [0, 1]
    torch.testing.assert_close(out["bought@places"].values(), initial("places", [7]))
    assert out["viewed"].to_padded_dense().shape == (2, 2, DIM)


def test_a_collection_takes_features_that_differ_in_their_number_of_bags(place: Any) -> None:
    tables = [EmbeddingConfig(name=name, embedding_dim=DIM) for name in ("users", "items")]
    ec = EmbeddingCollection(tables=tables, **place.table)
    out = ec(
        KeyedJaggedTensor(
            ["items", "users"], [7, 8, 5], lengths=[2, 0, 1], stride_per_key_per_rank=[[2], [1]]
        )
    )
    assert out["items"].lengths().tolist() == [2, 0]
    assert out["users"].lengths().tolist() == [1]
    torch.testing.assert_close(out["items"].values(), initial("items", [7, 8]))
    torch.testing.assert_close(out["users"].values(), initial("users", [5]))


def test_a_collection_trains_its_rows(place: Any) -> None:
    ec = EmbeddingCollection(
        tables=[EmbeddingConfig(name="items", embedding_dim=DIM)], **place.table
    )
    optimizer = Optimizer(ec, torch.optim.SGD, lr=1.0)
    kjt = KeyedJaggedTensor(["items"], [7, 7, 8], lengths=[2, 1])
    ec(kjt)["items"].to_padded_dense().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    expected = initial("items", [7, 7, 8]) - torch.tensor([[2.0], [2.0], [1.0]])
    torch.testing.assert_close(ec(kjt)["items"].values(), expected)


def test_embedding_keeps_the_shape_of_its_input(place: Any) -> None:
    embedding = Embedding(DIM, name="table", **place.table)
    ids = torch.tensor([[1, 2, 1], [-5, 2, 2**62]])
    out = embedding(ids)
    assert out.shape == (2, 3, DIM)
    torch.testing.assert_close(out.reshape(-1, DIM), initial("table", ids.reshape(-1).tolist()))
    assert embedding(torch.tensor(7)).shape == (DIM,)
    assert embedding(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, DIM)
    torch.testing.assert_close(embedding(torch.tensor([1], dtype=torch.int32)), out[0, :1])


def test_padding_reads_as_zeros_and_gets_no_row(place: Any) -> None:
    embedding = Embedding(DIM, padding_idx=0, **place.table)
    optimizer = Optimizer(embedding, torch.optim.SGD, lr=1.0)
    ids = torch.tensor([[0, 4], [0, 0]])
    out = embedding(ids)
    assert out[0, 0].tolist() == out[1, 0].tolist() == [0.0] * DIM
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.testing.assert_close(embedding(ids)[0, 1], out[0, 1] - 1)
    assert list(embedding.num_rows().values()) == [1]


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize(
    ("ids", "more"),
    [
        ([[1, 2, 3], [2, 2, 2]], {}),
        ([1, 2, 3, 3, 2], {"offsets": [0, 3, 3]}),
        ([1, 2, 3, 3, 2], {"offsets": [0, 0, 5]}),
        ([1, 2, 3, 3, 2], {"offsets": [0, 3, 3, 5], "include_last_offset": True}),
        ([], {"offsets": [0, 0]}),
    ],
)
def test_embedding_bag_equals_torch(
    place: Any, ids: list[Any], more: dict[str, Any], padding_idx: int | None, mode: str
) -> None:
    more = dict(more)
    offsets = more.pop("offsets", None)
    given = [torch.tensor(ids, dtype=torch.int64)]
    given += [] if offsets is None else [torch.tensor(offsets)]
    ours = EmbeddingBag(
        DIM, name="table", mode=mode, padding_idx=padding_idx, **place.table, **more
    )
    theirs = torch.nn.EmbeddingBag(
        4, DIM, mode=mode, padding_idx=padding_idx, _weight=initial("table", [0, 1, 2, 3]), **more
    )
    torch.testing.assert_close(ours(*given), theirs(*given))


def test_default_mode_equals_torch(place: Any) -> None:
    assert EmbeddingBag(DIM, **place.table).mode == torch.nn.EmbeddingBag(1, DIM).mode


def test_per_sample_weights_follow_padding(place: Any) -> None:
    ours = EmbeddingBag(DIM, name="table", mode="sum", padding_idx=2, **place.table)
    theirs = torch.nn.EmbeddingBag(
        4, DIM, mode="sum", padding_idx=2, _weight=initial("table", [0, 1, 2, 3])
    )
    ids, gradients = torch.tensor([[1, 2], [3, 3]]), []
    for module in (ours, theirs):
        weights = torch.tensor([[1.0, 5.0], [2.0, 0.5]], requires_grad=True)
        out = module(ids, per_sample_weights=weights)
        out.sum().backward()
        gradients.append((out.detach(), weights.grad))
    torch.testing.assert_close(*gradients)


def test_invalid_bags_are_rejected(place: Any) -> None:
    bag = EmbeddingBag(DIM, **place.table)
    ids = torch.tensor([1, 2])
    with pytest.raises(InvalidArgumentError, match="without offsets"):
        bag(ids)
    with pytest.raises(InvalidArgumentError, match="omit offsets"):
        bag(ids.reshape(1, 2), torch.tensor([0]))
    with pytest.raises(InvalidArgumentError, match="one dimension"):
        bag(ids, torch.tensor([[0, 1]]))
    with pytest.raises(InvalidArgumentError, match="require mode 'sum'"):
        bag(ids, torch.tensor([0]), torch.ones(2))
    with pytest.raises(InvalidArgumentError, match="shape of the input"):
        EmbeddingBag(DIM, mode="sum", **place.table)(ids, torch.tensor([0]), torch.ones(1))
    with pytest.raises(InvalidArgumentError, match="found mode='max', expected 'sum' or 'mean'"):
        EmbeddingBag(DIM, mode="max", **place.table)
    with pytest.raises(InvalidArgumentError, match="not a whole number"):
        Embedding(DIM, **place.table)(torch.tensor([0.5]))


def test_invalid_offsets_are_rejected_if_the_check_needs_no_wait() -> None:
    bag = EmbeddingBag(DIM, storage="memory")
    ids = torch.tensor([1, 2])
    with pytest.raises(InvalidArgumentError, match="must not decrease"):
        bag(ids, torch.tensor([0, 2, 1]))
    with pytest.raises(InvalidArgumentError, match="must be the"):
        EmbeddingBag(DIM, include_last_offset=True, storage="memory")(ids, torch.tensor([0, 1]))


def test_modules_without_names_have_separate_tables() -> None:
    one, other = Embedding(DIM, storage="memory"), Embedding(DIM, storage="memory")
    assert one.name != other.name
    name = other.name
    del other
    assert Embedding(DIM, storage="memory").name == name
