from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import StorageChoice, open_storage
from sparring.contracts import TableConfig
from sparring.contracts.tables.admission import Frequency
from sparring.errors import InvalidArgumentError, PluginError
from sparring.kernels.functions import initial_rows
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer

USERS = EmbeddingBagConfig(name="users", embedding_dim=2, feature_names=["user"])
ITEMS = EmbeddingBagConfig(
    name="items",
    embedding_dim=3,
    feature_names=["viewed", "bought"],
    pooling=PoolingType.MEAN,
    data_type="float32",
)


def batch(order: tuple[str, ...] = ("user", "viewed", "bought")) -> KeyedJaggedTensor:
    """Two examples; item 7 is viewed and bought, and one bag is empty."""
    features = {"user": ([1, 1], [1, 1]), "viewed": ([7, 8, 9], [2, 1]), "bought": ([7], [0, 1])}
    ids = [each for name in order for each in features[name][0]]
    lengths = [each for name in order for each in features[name][1]]
    return KeyedJaggedTensor(list(order), torch.tensor(ids), lengths=lengths)


def initial(table: str, dim: int, ids: list[int]) -> Tensor:
    return torch.from_numpy(initial_rows(ids, TableConfig(table, dim))).to(
        torch.get_default_device()
    )


def test_output_is_pooled_and_keyed_by_feature(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
    out = ebc(batch())
    assert out.keys() == ["user", "viewed", "bought"]
    assert out.length_per_key() == [2, 3, 3]
    rows = initial("items", 3, [7, 8, 9])
    torch.testing.assert_close(out["user"], initial("users", 2, [1, 1]))
    torch.testing.assert_close(out["viewed"], torch.stack([(rows[0] + rows[1]) / 2, rows[2]]))
    torch.testing.assert_close(out["bought"], torch.stack([torch.zeros(3), rows[0]]))


@pytest.mark.parametrize("order", [("bought", "user", "viewed"), ("viewed", "user", "bought")])
def test_order_of_features_in_the_batch_does_not_matter(place: Any, order: tuple[str, ...]) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
    torch.testing.assert_close(ebc(batch(order)).values(), ebc(batch()).values())


def test_features_that_share_a_table_share_its_rows(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
    optimizer = Optimizer(ebc, torch.optim.SGD, lr=1.0)
    before = ebc(batch())
    before["viewed"].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    after = ebc(batch())
    # Item 7 was one of two in its bag, so it changed by a half, in all features.
    torch.testing.assert_close(after["bought"][1], before["bought"][1] - 0.5)
    assert ebc.num_rows()["items"] == 3


def test_a_feature_in_several_tables_is_named_with_its_table(place: Any) -> None:
    tables = [
        EmbeddingBagConfig(name="wide", embedding_dim=1, feature_names=["user"]),
        EmbeddingBagConfig(name="deep", embedding_dim=4, feature_names=["user", "item"]),
    ]
    ebc = EmbeddingBagCollection(tables=tables, **place.table)
    out = ebc(KeyedJaggedTensor(["user", "item"], [1, 2], lengths=[1, 1]))
    assert out.keys() == ["user@wide", "user@deep", "item"]
    torch.testing.assert_close(out["user@deep"], initial("deep", 4, [1]))


def test_a_table_without_features_uses_its_name(place: Any) -> None:
    ebc = EmbeddingBagCollection(
        tables=[EmbeddingBagConfig(name="user", embedding_dim=2)], **place.table
    )
    assert ebc(KeyedJaggedTensor(["user"], [3], lengths=[1])).keys() == ["user"]


def test_weights_multiply_and_get_a_gradient(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS], is_weighted=True, **place.table)
    weights = torch.tensor([2.0, -1.0], requires_grad=True)
    kjt = KeyedJaggedTensor(["user"], torch.tensor([5, 6]), weights, lengths=[2])
    out = ebc(kjt)["user"]
    rows = initial("users", 2, [5, 6])
    torch.testing.assert_close(out, (2 * rows[0] - rows[1])[None])
    out.sum().backward()
    assert weights.grad is not None
    torch.testing.assert_close(weights.grad, rows.sum(1))


def test_weights_are_ignored_by_default(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS], **place.table)
    kjt = KeyedJaggedTensor(["user"], torch.tensor([5]), torch.tensor([9.0]), lengths=[1])
    torch.testing.assert_close(ebc(kjt)["user"], initial("users", 2, [5]))


def test_a_batch_without_examples_or_ids_is_accepted(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
    features = ["user", "viewed", "bought"]
    none = ebc(KeyedJaggedTensor(features, torch.empty(0, dtype=torch.int64), lengths=[]))
    assert none.values().shape == (0, 8)
    assert none["bought"].shape == (0, 3)
    no_ids = ebc(KeyedJaggedTensor(features, torch.empty(0, dtype=torch.int64), lengths=[0] * 6))
    assert no_ids.values().tolist() == [[0.0] * 8] * 2


def test_integral_floats_are_ids_and_others_are_rejected_by_feature(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS], **place.table)
    # torch.Tensor creates CPU tensors, even if torch has another default device.
    out = ebc(KeyedJaggedTensor(["user"], torch.Tensor([5]).to(place.device), lengths=[1]))
    torch.testing.assert_close(out["user"], initial("users", 2, [5]))
    optimizer = Optimizer(ebc, torch.optim.SGD, lr=1.0)
    with pytest.raises(InvalidArgumentError, match=r"feature 'user': 5\.5 at position 0"):
        ebc(KeyedJaggedTensor(["user"], torch.Tensor([5.5]).to(place.device), lengths=[1]))
    optimizer.step()
    optimizer.zero_grad()
    assert ebc.num_rows() == {"users": 0}


def test_features_and_tables_must_match(place: Any) -> None:
    ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
    with pytest.raises(InvalidArgumentError, match=r"no feature 'user'.*did you mean 'users'"):
        ebc(KeyedJaggedTensor(["users"], [1], lengths=[1]))
    with pytest.raises(InvalidArgumentError, match="no feature 'bought'"):
        ebc(KeyedJaggedTensor(["user", "viewed"], [1, 2], lengths=[1, 1]))
    with pytest.raises(InvalidArgumentError, match=r"weights: this .* has none"):
        EmbeddingBagCollection(tables=[USERS], is_weighted=True, **place.table)(
            KeyedJaggedTensor(["user"], [1], lengths=[1])
        )
    with pytest.raises(InvalidArgumentError, match="found dict, expected a KeyedJaggedTensor"):
        ebc({"user": torch.tensor([1])})


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ([], "at least one table"),
        ([USERS, USERS], "declared twice"),
        (
            [EmbeddingBagConfig(name="t", embedding_dim=2, feature_names=["a", "a"])],
            "repeated feature",
        ),
        ([EmbeddingBagConfig(name="t", embedding_dim=0)], "dim of table 't'"),
        ([EmbeddingBagConfig(name="t", embedding_dim=2, data_type="int4")], "float16, bfloat16"),
        ([EmbeddingBagConfig(name="t", embedding_dim=2, num_embeddings=0)], "positive integer"),
        (
            [EmbeddingBagConfig(name="t", embedding_dim=2, pooling="max")],  # type: ignore[arg-type]
            "pooling of table 't'",
        ),
        ([EmbeddingBagConfig(name="t", embedding_dim=2, initializer="unifrm")], "initializer"),
    ],
)
def test_invalid_tables_are_rejected(tables: list[EmbeddingBagConfig], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        EmbeddingBagCollection(tables=tables, storage="memory")


def test_storage_is_a_name_a_choice_a_mapping_or_open() -> None:
    opened = open_storage("memory", TableConfig("users", 2))
    for storage in ("memory", StorageChoice("memory"), {"backend": "memory"}, opened):
        ebc = EmbeddingBagCollection(tables=[USERS], storage=storage)  # type: ignore[arg-type]
        Optimizer(ebc, torch.optim.SGD, lr=1.0)
        assert ebc.agent.container.storage("users").table.dim == 2
    assert ebc.agent.container.storage("users") is opened


def test_an_open_storage_must_have_space_for_the_state() -> None:
    opened = open_storage("memory", TableConfig("users", 2))
    ebc = EmbeddingBagCollection(tables=[USERS], storage=opened)
    with pytest.raises(InvalidArgumentError, match="open it with state_width=2"):
        Optimizer(ebc, torch.optim.Adagrad, lr=1.0)
    with_state = open_storage("memory", TableConfig("users", 2, state_width=2))
    ebc = EmbeddingBagCollection(tables=[USERS], storage=with_state)
    optimizer = Optimizer(ebc, torch.optim.Adagrad, lr=1.0)
    ebc(KeyedJaggedTensor(["user"], [1], lengths=[1])).values().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert with_state.size == 1


def test_a_config_keeps_the_settings_of_a_table() -> None:
    table = TableConfig(
        "users", 4, "float64", "zeros", seed=3, placement="replicated", admission=Frequency(3)
    )
    collection = EmbeddingBagCollection([EmbeddingBagConfig.of(table)], storage="memory")
    assert [each.table for each in collection.agent.declarations] == [table]


def test_num_embeddings_bounds_the_storage(place: Any) -> None:
    config = EmbeddingBagConfig(name="users", embedding_dim=2, num_embeddings=5)
    ebc = EmbeddingBagCollection(tables=[config], **place.table)
    Optimizer(ebc, torch.optim.SGD, lr=1.0)
    assert ebc.agent.container.storage("users").capacity == 5


def test_an_unknown_backend_is_rejected_by_the_constructor() -> None:
    with pytest.raises(PluginError, match=r"'memry' is unknown; did you mean 'memory'\?"):
        EmbeddingBagCollection(tables=[USERS], storage="memry")


def test_bags_that_examples_share_are_looked_up_once(place: Any) -> None:
    tables = [
        EmbeddingBagConfig(name="users", embedding_dim=2, feature_names=["user"]),
        EmbeddingBagConfig(name="items", embedding_dim=3, feature_names=["viewed", "bought"]),
    ]
    collection = EmbeddingBagCollection(tables, **place.table)
    optimizer = Optimizer(collection, torch.optim.SGD, lr=0.5)
    which = torch.tensor([[0, 1, 0, 0], [0, 1, 2, 3], [3, 2, 1, 0]])
    keys = ["viewed", "user", "bought"]
    ids = torch.tensor([7, 8, 5, 6, 6, 9, 9, 7])
    shared = KeyedJaggedTensor(
        keys,
        ids,
        lengths=torch.tensor([2, 1, 1, 1, 1, 0, 0, 1, 0, 1]),
        stride_per_key_per_rank=[[2], [4], [4]],
        inverse_indices=(keys, which),
    )
    parts = [shared[key].to_dense() for key in keys]
    rows = [[part[bag] for bag in own] for part, own in zip(parts, which.tolist(), strict=True)]
    spread = [bag for row in rows for bag in row]
    plain = KeyedJaggedTensor(
        keys, torch.cat(spread), lengths=torch.tensor([len(bag) for bag in spread])
    )
    found, wanted = collection(shared), collection(plain)
    assert found.keys() == ["user", "viewed", "bought"]
    assert place.agree(found.values(), wanted.values())
    scale = torch.arange(found.values().numel()).view_as(found.values()).float()
    (found.values() * scale).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    stepped = collection(plain).values().detach().clone()

    other = EmbeddingBagCollection(tables, **place.table)
    twin = Optimizer(other, torch.optim.SGD, lr=0.5)
    (other(plain).values() * scale).sum().backward()
    twin.step()
    twin.zero_grad()
    assert torch.allclose(stepped, other(plain).values(), atol=1e-6)


def test_shared_bags_need_inverse_indices(place: Any) -> None:
    table = EmbeddingBagConfig(name="users", embedding_dim=2, feature_names=["user", "friend"])
    collection = EmbeddingBagCollection([table], **place.table)
    batch = KeyedJaggedTensor(
        ["user", "friend"],
        torch.tensor([1, 2, 3]),
        lengths=torch.tensor([1, 1, 1]),
        stride_per_key_per_rank=[[1], [2]],
    )
    with pytest.raises(InvalidArgumentError, match="give inverse_indices="):
        collection(batch)


def test_a_gradient_in_the_columns_of_a_larger_one_equals_its_copy(place: Any) -> None:
    found = []
    for is_copied in (True, False):
        ebc = EmbeddingBagCollection(tables=[USERS, ITEMS], **place.table)
        optimizer = Optimizer(ebc, torch.optim.SGD, lr=1.0)
        values = ebc(batch()).values()
        if is_copied:
            values.register_hook(lambda gradient: gradient.contiguous())
        both = torch.cat([torch.ones_like(values), values], dim=1)
        (both * torch.arange(32.0, device=both.device).reshape(2, 16)).sum().backward()
        optimizer.step()
        found.append(ebc(batch()).values())
    assert torch.equal(found[0], found[1])
