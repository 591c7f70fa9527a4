"""Programs with the calls of TorchRec's examples and only the changes that the page describes.

The page is docs/how-to/come-from-torchrec.md. The programs are our own; each test names the address of
the one that it follows. The golden training is packages/framework-torch/examples/train_dlrm.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from sparring_torch.models import TwoTower, TwoTowerTrainTask
from sparring_torch.torchrec import (
    Batch,
    CombinedOptimizer,
    DistributedModelParallel,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedOptimizerWrapper,
    KeyedTensor,
    PoolingType,
    PositionWeightedModuleCollection,
    RowWiseAdagrad,
    TrainPipelineSparseDist,
    apply_optimizer_in_backward,
    in_backward_optimizer_filter,
)


def test_jagged_tensors_and_pooled_embeddings() -> None:
    """https://docs.pytorch.org/torchrec/concepts.html: a batch, a collection, a regrouping."""
    users = JaggedTensor(values=torch.tensor([3, 4, 4]), lengths=torch.tensor([1, 2]))
    items = JaggedTensor.from_dense([torch.tensor([7]), torch.tensor([8, 9])])
    batch = KeyedJaggedTensor.from_jt_dict({"user": users, "item": items})
    assert batch.stride() == 2
    assert batch.to_dict()["item"].to_padded_dense().tolist() == [[7, 0], [8, 9]]
    bags = EmbeddingBagCollection(
        device=torch.device("cpu"),
        tables=[
            EmbeddingBagConfig(
                name="users",
                embedding_dim=4,
                num_embeddings=100,
                feature_names=["user"],
                pooling=PoolingType.SUM,
            ),
            EmbeddingBagConfig(
                name="items",
                embedding_dim=2,
                num_embeddings=100,
                feature_names=["item"],
                pooling=PoolingType.MEAN,
            ),
        ],
    )
    bags.eval()
    pooled = bags(batch)
    assert pooled.keys() == ["user", "item"]
    assert pooled.values().shape == (2, 6)
    (both,) = KeyedTensor.regroup([pooled], [["item", "user"]])
    assert torch.equal(both, torch.cat([pooled["item"], pooled["user"]], dim=1))
    # The second user's bag contains one id twice, and the bag is summed.
    twice = KeyedJaggedTensor(["user", "item"], torch.tensor([4, 7]), lengths=torch.tensor([1, 1]))
    assert torch.allclose(pooled["user"][1], 2 * bags(twice)["user"][0])


def test_a_distributed_model_with_an_optimizer_in_backward() -> None:
    """https://docs.pytorch.org/tutorials/intermediate/torchrec_intro_tutorial.html: a collection
    on the meta device, and a loop with one combined optimizer.
    """
    torch.manual_seed(0)
    bags = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(
                name=name, embedding_dim=8, num_embeddings=4096, feature_names=[feature]
            )
            for name, feature in (("product_table", "product"), ("user_table", "user"))
        ],
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = bags
            self.score = nn.Linear(16, 1)

        def forward(self, features: KeyedJaggedTensor) -> torch.Tensor:
            scores: torch.Tensor = self.score(self.bags(features).values())
            return scores.squeeze(1)

    model = Model()
    apply_optimizer_in_backward(RowWiseAdagrad, model.bags.parameters(), {"lr": 0.5})
    distributed = DistributedModelParallel(model, device=torch.device("cpu"))
    assert distributed.plan == {"product_table": "row_wise", "user_table": "row_wise"}
    optimizer = CombinedOptimizer(
        [
            distributed.fused_optimizer,
            KeyedOptimizerWrapper(
                dict(in_backward_optimizer_filter(distributed.named_parameters())),
                lambda parameters: torch.optim.Adam(parameters, lr=0.05),
            ),
        ]
    )
    features = KeyedJaggedTensor(
        ["product", "user"], torch.tensor([101, 202, 303, 404]), lengths=torch.ones(4).long()
    )
    wanted = torch.tensor([1.0, -1.0])
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (distributed(features) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    assert bags.num_rows() == {"product_table": 2, "user_table": 2}
    distributed.close()


def test_two_towers_trained_for_retrieval() -> None:
    """https://github.com/pytorch/torchrec/blob/main/examples/retrieval/two_tower_train.py: training
    on pairs, then ranking of all candidates for a query. Users like movies with their parity.
    """
    torch.manual_seed(0)
    columns = ["userId", "movieId"]
    bags = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(name=f"t_{name}", embedding_dim=8, feature_names=[name])
            for name in columns
        ],
        device=torch.device("meta"),
    )
    two_tower = TwoTower(bags, layer_sizes=[16, 8], device=torch.device("cpu"))
    task = TwoTowerTrainTask(two_tower)
    apply_optimizer_in_backward(RowWiseAdagrad, bags.parameters(), {"lr": 0.1})
    model = DistributedModelParallel(module=task, device=torch.device("cpu"))
    optimizer = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    )
    pipeline = TrainPipelineSparseDist(model, optimizer, torch.device("cpu"))

    def pairs(count: int) -> Iterator[Batch]:
        for _ in range(count):
            users, movies = torch.randint(12, (2, 128))
            ids = KeyedJaggedTensor(
                columns, torch.cat([users, movies]), lengths=torch.ones(256, dtype=torch.int64)
            )
            yield Batch(torch.empty(128, 0), ids, (users % 2 == movies % 2).float())

    iterator = pairs(80)
    while True:
        try:
            pipeline.progress(iterator)
        except StopIteration:
            break
    two_tower.eval()
    everything = KeyedJaggedTensor(
        columns, torch.arange(12).repeat(2), lengths=torch.ones(24, dtype=torch.int64)
    )
    with torch.no_grad():
        queries, candidates = two_tower(everything)
    best = (queries @ candidates.T).topk(3).indices
    assert (best % 2 == torch.arange(12)[:, None] % 2).float().mean() > 0.9
    model.close()


def test_sequences_and_weights_of_places() -> None:
    """https://github.com/pytorch/torchrec/blob/main/torchrec/modules/embedding_modules.py and
    feature_processor_.py: embeddings of a history, unpooled and pooled with learned weights.
    """
    history = KeyedJaggedTensor(
        ["watched"], torch.tensor([5, 6, 7, 5]), lengths=torch.tensor([3, 1])
    )
    sequence = EmbeddingCollection(
        tables=[EmbeddingConfig(name="shows", embedding_dim=4, feature_names=["watched"])],
        device=torch.device("meta"),
    )
    bags = EmbeddingBagCollection(
        tables=[EmbeddingBagConfig(name="pooled", embedding_dim=4, feature_names=["watched"])],
        is_weighted=True,
    )
    places = PositionWeightedModuleCollection({"watched": 3})
    apply_optimizer_in_backward(RowWiseAdagrad, [sequence, bags], {"lr": 0.1})
    optimizer = torch.optim.SGD(places.parameters(), lr=0.1)
    for _ in range(3):
        padded = sequence(history)["watched"].to_padded_dense()
        assert padded.shape == (2, 3, 4)
        pooled = bags(places(history)).values()
        optimizer.zero_grad()
        (padded.square().sum() + (pooled - 1.0).square().sum()).backward()
        optimizer.step()
    assert sequence.num_rows() == {"shows": 3}
    assert not torch.equal(places.position_weights["watched"], torch.ones(3))
