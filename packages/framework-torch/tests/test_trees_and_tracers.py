"""Functions of torch for complete batches: pytrees, export, device ``meta``, torch.fx, TorchScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import (
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    Optimizer,
)
from sparring_torch.modules.table_module import TableModule


def batch(*keys: str) -> KeyedJaggedTensor:
    lengths = torch.tensor([2, 1] * len(keys))
    return KeyedJaggedTensor(list(keys), torch.arange(3 * len(keys)), lengths=lengths)


def bags(**settings: Any) -> EmbeddingBagCollection:
    configs = [
        EmbeddingBagConfig(name=f"{name}s", embedding_dim=2, feature_names=[name]) for name in "ab"
    ]
    settings = settings if "device" in settings else {"storage": "memory"} | settings
    return EmbeddingBagCollection(configs, **settings)


def sequences(**settings: Any) -> EmbeddingCollection:
    configs = [
        EmbeddingConfig(name=f"{name}s", embedding_dim=2, feature_names=[name]) for name in "ab"
    ]
    settings = settings if "device" in settings else {"storage": "memory"} | settings
    return EmbeddingCollection(configs, **settings)


def flat(output: Any) -> Tensor:
    return torch.cat(
        [leaf.flatten() for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor)]
    )


@pytest.mark.parametrize(
    "tree",
    [
        JaggedTensor([1.0, 2.0], lengths=[2], weights=[3.0, 4.0]),
        KeyedTensor(["a", "b"], [1, 2], torch.ones(3, 2), key_dim=0),
        KeyedJaggedTensor(["a"], [1.0, 2.0], lengths=[2, 0]),
    ],
    ids=lambda each: type(each).__name__,
)
def test_batches_are_trees_of_their_tensors(tree: Any) -> None:
    leaves, spec = tree_flatten(tree)
    assert any(leaf is tree.values() for leaf in leaves)
    again = tree_unflatten(leaves, spec)
    assert type(again) is type(tree)
    assert repr(again) == repr(tree)
    doubled = tree_map(lambda leaf: leaf * 2 if isinstance(leaf, Tensor) else leaf, tree)
    assert torch.equal(doubled.values(), tree.values() * 2)


@pytest.mark.parametrize("make", [bags, sequences])
def test_a_collection_is_exported_and_ignores_unknown_features(
    make: Callable[[], TableModule],
) -> None:
    module = make().eval()
    for keys in (("a", "b"), ("x", "b", "y", "a", "z")):
        example = batch(*keys)
        program = torch.export.export(module, (example,))
        found = program.module()(example)
        assert torch.equal(flat(found), flat(module(example)))


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("settings", [{}, {"device": "emulated"}], ids=str)
@pytest.mark.parametrize("make", [bags, sequences])
def test_unknown_features_of_a_batch_are_ignored(
    make: Callable[..., Any], settings: dict[str, Any], is_compiled: bool
) -> None:
    given = batch("x", "b", "y", "a", "z").sync()
    wanted = given.permute([3, 1])
    rows = []
    for features in (given, wanted):
        module = make(**settings)
        optimizer = Optimizer(module, torch.optim.SGD, lr=1.0)
        called = torch.compile(module, backend="aot_eager") if is_compiled else module
        optimizer.zero_grad()
        flat(called(features)).square().sum().backward()
        optimizer.step()
        assert module.num_rows() == {"as": 3, "bs": 3}
        rows.append([module.read_embeddings(range(15), name) for name in ("as", "bs")])
    for mine, theirs in zip(*rows, strict=True):
        assert torch.equal(mine, theirs)


def test_unknown_features_may_contain_values_that_are_not_ids() -> None:
    given = KeyedJaggedTensor(["a", "x", "b"], [1.0, 0.5, 2.0], lengths=[1, 1, 1])
    assert bags()(given).keys() == ["a", "b"]


@pytest.mark.parametrize("make", [bags, sequences])
def test_unknown_features_are_rejected_on_request(make: Callable[..., TableModule]) -> None:
    module = make(unknown_features="reject")
    module(batch("b", "a"))
    with pytest.raises(
        InvalidArgumentError, match=r"feature 'x' of the batch .*unknown_features='ignore'"
    ):
        module(batch("a", "x", "b"))
    with pytest.raises(
        InvalidArgumentError, match=r"found unknown_features='drop', expected 'ignore' or"
    ):
        make(unknown_features="drop")


def test_batches_on_the_meta_device_have_only_shapes() -> None:
    ids = torch.empty(6, dtype=torch.int64, device="meta")
    lengths = torch.empty(4, dtype=torch.int64, device="meta")
    offsets = torch.empty(5, dtype=torch.int64, device="meta")
    for made in (
        KeyedJaggedTensor(["a", "b"], ids, lengths=lengths),
        KeyedJaggedTensor.from_lengths_sync(["a", "b"], ids, lengths),
        KeyedJaggedTensor.from_offsets_sync(["a", "b"], ids, offsets),
        KeyedJaggedTensor.from_offsets_sync(["a", "b"], ids, offsets[:-1]),
        batch("a", "b").to("meta"),
    ):
        assert (made.stride(), made.lengths().shape, made.offsets().shape) == (2, (4,), (5,))
        assert made.device().type == "meta"
        assert "device='meta'" in repr(made)
    with pytest.raises(
        InvalidArgumentError, match="length_per_key: found a batch on device 'meta'"
    ):
        made.length_per_key()
    with pytest.raises(
        InvalidArgumentError, match="EmbeddingBagCollection: found a batch on device 'meta'"
    ):
        bags()(made)
    assert "device='meta'" in repr(JaggedTensor(ids, lengths=lengths))


class Model(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Any) -> Any:
        return self.inner(ids)


@pytest.mark.parametrize("make", [bags, sequences, lambda: Embedding(2), lambda: EmbeddingBag(2)])
def test_tracers_that_see_no_lookup_are_rejected(make: Callable[[], nn.Module]) -> None:
    model = Model(make())
    with pytest.raises(
        UnsupportedError, match=r"torch.fx.symbolic_trace cannot trace .*torch.export.export"
    ):
        torch.fx.symbolic_trace(model)
    with pytest.raises(
        UnsupportedError, match=r"torch.jit.script cannot compile .*torch.export.export"
    ):
        torch.jit.script(model)


def test_a_tracer_that_keeps_tables_as_leaves_traces_the_rest() -> None:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return isinstance(m, TableModule) or super().is_leaf_module(m, module_qualified_name)

    model = Model(bags())
    traced = torch.fx.GraphModule(model, Tracer().trace(model))
    features = batch("a", "b")
    assert torch.equal(traced(features).values(), model(features).values())
