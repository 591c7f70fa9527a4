"""`torch.compile` of a model with tables gives the same losses and writes nothing to stderr."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys

import torch
from torch import nn

import sparring_torch as st

IDS = [torch.arange(first, first + 6) for first in range(3)]


def features_of(ids):
    return st.KeyedJaggedTensor(["a", "b"], ids, lengths=torch.tensor([1, 2, 2, 1]))


class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = st.Embedding(4, name="single", padding_idx=3)
        self.dense = nn.Linear(4, 1)

    def batch_of(self, ids):
        return ids

    def forward(self, ids):
        return self.dense(torch.relu(self.table(ids))).square().mean()


class Bag(Single):
    def __init__(self):
        super().__init__()
        self.table = st.EmbeddingBag(4, name="bag", mode="mean")

    def forward(self, ids):
        return self.dense(torch.relu(self.table(ids.view(2, 3)))).square().mean()


class Weighted(Single):
    def __init__(self):
        super().__init__()
        self.table = st.EmbeddingBag(4, name="weighted", mode="sum")
        self.weights = nn.Parameter(torch.ones(6))

    def forward(self, ids):
        bags = self.table(ids, torch.tensor([0, 2]), self.weights)
        return self.dense(torch.relu(bags)).square().mean()


class Many(Single):
    # More tables than there may be graphs of one function.

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(st.Embedding(4, name=f"many{i}") for i in range(10))

    def forward(self, ids):
        found = sum(table(ids) for table in self.tables)
        return self.dense(torch.relu(found)).square().mean()


class Bags(Single):
    def __init__(self):
        super().__init__()
        tables = [st.EmbeddingBagConfig(
            name="bags", embedding_dim=4, feature_names=["a", "b"])]
        self.table = st.EmbeddingBagCollection(tables=tables)

    batch_of = staticmethod(features_of)

    def forward(self, batch):
        found = self.table(batch)
        return self.dense(found["a"] * found["b"]).square().mean()


class Sequences(Single):
    def __init__(self):
        super().__init__()
        tables = [st.EmbeddingConfig(
            name="sequences", embedding_dim=4, feature_names=["a", "b"])]
        self.table = st.EmbeddingCollection(tables=tables)

    batch_of = staticmethod(features_of)

    def forward(self, batch):
        found = self.table(batch)
        return self.dense(found["a"].values() * found["b"].values()).square().mean()


def losses(kind, backend):
    torch.manual_seed(0)
    model = kind()
    optimizers = [
        st.Optimizer(model, torch.optim.Adagrad, lr=0.1),
        torch.optim.SGD(model.parameters(), lr=0.1),
    ]
    # How many ids each feature of a sequence has decides its shape: here no graph knows it.
    whole = kind is not Sequences
    call = model if backend is None else torch.compile(model, backend=backend, fullgraph=whole)
    found = []
    for ids in IDS:
        for each in optimizers:
            each.zero_grad()
        loss = call(model.batch_of(ids))
        loss.backward()
        for each in optimizers:
            each.step()
        found.append(loss.item())
    model.eval()
    with torch.no_grad():
        found += [call(model.batch_of(ids)).item() for ids in IDS]
    assert not model.table.agent.container.resources.num_batch_inputs
    return found


for kind in (Single, Bag, Weighted, Many, Bags, Sequences):
    expected = losses(kind, None)
    assert len(set(expected)) > 3, expected
    assert losses(kind, sys.argv[1]) == expected, kind
    print(kind.__name__)
"""


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param("eager", marks=pytest.mark.long),
        pytest.param("aot_eager", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_model_trains_like_the_model(backend: str) -> None:
    command = [sys.executable, "-c", PROGRAM, backend]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["Single", "Bag", "Weighted", "Many", "Bags", "Sequences"]
