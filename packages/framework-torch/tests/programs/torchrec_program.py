"""A TorchRec program before its translation: `test_torchrec_program` translates and runs it.

Each function is our own version of a public program, with the same imports and calls:
dlrm_main        torchrec_dlrm/dlrm_main.py of github.com/facebookresearch/dlrm, with multi-hot ids
golden           examples/golden_training/train_dlrm.py and train_dlrm_data_parallel.py of TorchRec
fused            examples/ray/train_torchrec.py and examples/torcharrow/run.py
retrieval        examples/retrieval/two_tower_train.py
sequences        examples/bert4rec/bert4rec_main.py
"""
# mypy: ignore-errors
# ruff: noqa: F401, I001 - all names that these programs import, module by module

import itertools
import sys
from typing import cast

import torch
from torch import distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

import torchrec
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torchrec import EmbeddingBagCollection, EmbeddingCollection, EmbeddingConfig
from torchrec import inference as trec_infer
from torchrec.datasets.criteo import (
    CAT_FEATURE_COUNT,
    DAYS,
    DEFAULT_CAT_NAMES,
    DEFAULT_INT_NAMES,
    INT_FEATURE_COUNT,
    InMemoryBinaryCriteoIterDataPipe,
    TOTAL_TRAINING_SAMPLES,
)
from torchrec.datasets.movielens import DEFAULT_RATINGS_COLUMN_NAMES
from torchrec.datasets.random import RandomRecDataset
from torchrec.datasets.utils import Batch
from torchrec.distributed import TrainPipelineSparseDist
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import (
    CommType,
    get_qcomm_codecs_registry,
    QCommsConfig,
)
from torchrec.distributed.fused_embeddingbag import FusedEmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import (
    DistributedModelParallel,
    get_default_sharders,
)
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.storage_reservations import (
    HeuristicalStorageReservation,
)
from torchrec.distributed.planner.types import ParameterConstraints, ShardingPlan
from torchrec.distributed.quant_embeddingbag import QuantEmbeddingBagCollectionSharder
from torchrec.distributed.types import ModuleSharder, ShardingEnv, ShardingType
from torchrec.inference.model_packager import load_pickle_config, PredictFactoryPackager
from torchrec.inference.modules import PredictFactory, PredictModule, quantize_embeddings
from torchrec.inference.state_dict_transform import (
    state_dict_gather,
    state_dict_to_device,
)
from torchrec.metrics.throughput import ThroughputMetric
from torchrec.models.dlrm import DLRM, DLRM_DCN, DLRM_Projection, DLRMTrain
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.fused_embedding_modules import fuse_embedding_optimizer
from torchrec.modules.hash_mc_evictions import (
    HashZchEvictionConfig,
    HashZchEvictionPolicyName,
)
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.modules.mlp import MLP
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.apply_overlapped_optimizer import apply_overlapped_optimizer
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor, KeyedTensor

DEVICE = torch.device("cpu")
NUM_EMBEDDINGS, DIM, BATCH_SIZE = 50, 8, 16


class PredictDLRM(PredictModule):
    def predict_forward(self, batch: KeyedJaggedTensor) -> KeyedTensor | None:
        return self.predict_module(batch)


class ThreeSteps(LRScheduler):
    def get_lr(self) -> list[float]:
        return [lr / (1 + self._step_count) for lr in self.base_lrs]


def collection(names: list[str]) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}", embedding_dim=DIM, num_embeddings=NUM_EMBEDDINGS, feature_names=[name]
        )
        for name in names
    ]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))


def loader(names: list[str], num_dense: int) -> DataLoader:
    batches = RandomRecDataset(
        keys=names,
        batch_size=BATCH_SIZE,
        hash_size=NUM_EMBEDDINGS,
        ids_per_feature=1,
        num_dense=num_dense,
        manual_seed=0,
    )
    return DataLoader(batches, batch_size=None, batch_sampler=None, pin_memory=False, num_workers=0)


def dlrm(interaction: str, names: list[str]) -> nn.Module:
    settings = {
        "embedding_bag_collection": collection(names),
        "dense_in_features": len(DEFAULT_INT_NAMES),
        "dense_arch_layer_sizes": [16, DIM],
        "over_arch_layer_sizes": [16, 1],
        "dense_device": DEVICE,
    }
    if interaction == "dcn":
        return DLRM_DCN(dcn_num_layers=2, dcn_low_rank_dim=4, **settings)
    if interaction == "projection":
        return DLRM_Projection(
            interaction_branch1_layer_sizes=[2 * DIM],
            interaction_branch2_layer_sizes=[3 * DIM],
            **settings,
        )
    return DLRM(**settings)


def multi_hot(batch: Batch) -> Batch:
    """Returns each id with its successor."""
    ids = batch.sparse_features._values
    offsets = torch.arange(len(ids) + 1, dtype=torch.int32) * 2
    features = KeyedJaggedTensor.from_offsets_sync(
        keys=batch.sparse_features._keys,
        values=torch.stack([ids, (ids + 1) % NUM_EMBEDDINGS], dim=1).flatten(),
        offsets=offsets,
    )
    return Batch(batch.dense_features, features, batch.labels)


def evaluate(pipeline: TrainPipelineSparseDist, batches: DataLoader) -> int:
    pipeline._model.eval()
    pipeline._connected = False
    iterator = map(multi_hot, itertools.islice(iter(batches), 5))
    num_rows = 0
    with torch.no_grad():
        while True:
            try:
                _loss, logits, labels = pipeline.progress(iterator)
                assert logits.device == pipeline._device
                num_rows += len(torch.sigmoid(logits) * labels)
            except StopIteration:
                return num_rows


def dlrm_main(interaction: str, adagrad: bool) -> None:
    names = DEFAULT_CAT_NAMES[:4]
    train_model = DLRMTrain(dlrm(interaction, names))
    apply_optimizer_in_backward(
        torch.optim.Adagrad if adagrad else torch.optim.SGD,
        train_model.model.sparse_arch.parameters(),
        {"lr": 0.1},
    )
    planner = EmbeddingShardingPlanner(
        topology=Topology(
            local_world_size=get_local_size(),
            world_size=dist.get_world_size(),
            compute_device=DEVICE.type,
        ),
        batch_size=BATCH_SIZE,
        storage_reservation=HeuristicalStorageReservation(percentage=0.05),
    )
    plan = planner.collective_plan(train_model, get_default_sharders(), dist.GroupMember.WORLD)
    model = DistributedModelParallel(module=train_model, device=DEVICE, plan=plan)
    found = {
        table: parameter.sharding_type
        for tables in model._plan.plan.values()
        for table, parameter in tables.items()
    }
    assert found.keys() == {f"t_{name}" for name in names}
    assert set(found.values()) <= {each.value for each in ShardingType}
    dense_optimizer = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda params: torch.optim.SGD(params, lr=0.1),
    )
    optimizer = CombinedOptimizer([model.fused_optimizer, dense_optimizer])
    scheduler = ThreeSteps(optimizer)
    train, validate = (TrainPipelineSparseDist(model, optimizer, DEVICE) for _ in range(2))
    batches = loader(names, len(DEFAULT_INT_NAMES))
    bags = train_model.model.sparse_arch.embedding_bag_collection
    for _epoch in range(2):
        train._model.train()
        train._connected = False
        iterator = map(multi_hot, itertools.islice(iter(batches), 3))
        for step in itertools.count(1):
            try:
                rates = [group["lr"] for group in train._optimizer.param_groups]
                train.progress(iterator)
                scheduler.step()
                assert all(0 < rate <= 0.1 for rate in rates)
            except StopIteration:
                assert step == 4
                break
        rows = bags.num_rows()
        assert evaluate(validate, batches) == 5 * BATCH_SIZE
        assert bags.num_rows() == rows
        assert sum(rows.values()) > 2 * len(names)
    model.close()


def golden() -> None:
    names = DEFAULT_CAT_NAMES[:3]
    train_model = DLRMTrain(dlrm("original", names))
    planner = EmbeddingShardingPlanner(
        constraints={"t_cat_1": ParameterConstraints(compute_kernels=["dense"])}
    )
    plan: ShardingPlan = planner.collective_plan(train_model)
    apply_overlapped_optimizer(
        RowWiseAdagrad, train_model.model.sparse_arch.parameters(), {"lr": 0.1}
    )
    codecs = get_qcomm_codecs_registry(
        qcomms_config=QCommsConfig(
            forward_precision=CommType.FP16, backward_precision=CommType.BF16
        )
    )
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)
    model = DistributedModelParallel(
        plan=plan, module=train_model, device=DEVICE, sharders=[sharder]
    )
    of_embeddings = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.module.model.sparse_arch.named_parameters())),
        lambda params: RowWiseAdagrad(params, lr=0.1),
    )
    dense = KeyedOptimizerWrapper(
        {name: each for name, each in model.named_parameters() if "sparse" not in name},
        lambda params: torch.optim.Adagrad(params, lr=0.1),
    )
    optimizer = CombinedOptimizer(
        [("embeddings", of_embeddings), ("dense", dense), ("fused", model.fused_optimizer)]
    )
    pipeline = TrainPipelineSparseDist(model, optimizer, DEVICE)
    iterator = iter(loader(names, len(DEFAULT_INT_NAMES)))
    for _ in range(3):
        pipeline.progress(iterator)
    bags = train_model.model.sparse_arch.embedding_bag_collection
    assert sum(bags.num_rows().values()) > 2 * len(names)
    model.close()


def fused() -> None:
    names = [*DEFAULT_CAT_NAMES[:2], "bucketize_int_0"]
    train_model = DLRMTrain(dlrm("original", names))
    fused_params = {"learning_rate": 0.1, "optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD}
    sharders = [EmbeddingBagCollectionSharder(fused_params=fused_params)]
    model = DistributedModelParallel(
        module=train_model,
        device=DEVICE,
        sharders=cast(list[ModuleSharder[nn.Module]], sharders),
    )
    dense = KeyedOptimizerWrapper(
        dict(model.named_parameters()), lambda params: torch.optim.Adagrad(params, lr=0.1)
    )
    pipeline = TrainPipelineSparseDist(model, dense, DEVICE)
    iterator = iter(loader(names, INT_FEATURE_COUNT))
    for _ in range(3):
        pipeline.progress(iterator)
    bags = train_model.model.sparse_arch.embedding_bag_collection
    assert sum(bags.num_rows().values()) > 2 * len(names)
    assert [group["lr"] for group in model.fused_optimizer.param_groups] == [0.1] * len(names)
    model.close()


class Towers(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names, self.ebc = names, collection(names)
        self.towers = nn.ModuleList(MLP(in_size=DIM, layer_sizes=[16, 4]) for _ in names)

    def forward(self, batch: Batch) -> tuple:
        pooled = self.ebc(batch.sparse_features)
        query, candidate = (
            tower(pooled[name]) for name, tower in zip(self.names, self.towers, strict=True)
        )
        logits = (query * candidate).sum(1)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.float())
        return loss, (loss.detach(), logits.detach(), batch.labels)


def retrieval() -> None:
    names = DEFAULT_RATINGS_COLUMN_NAMES[:2]
    model = DistributedModelParallel(
        module=Towers(names),
        device=DEVICE,
        sharders=[
            EmbeddingBagCollectionSharder(
                fused_params={"learning_rate": 0.1, "optimizer": EmbOptimType.ROWWISE_ADAGRAD}
            )
        ],
    )
    optimizer = KeyedOptimizerWrapper(
        dict(model.named_parameters()), lambda params: torch.optim.Adam(params, lr=0.01)
    )
    pipeline = TrainPipelineSparseDist(model, optimizer, DEVICE)
    iterator = iter(loader(names, 0))
    for _ in range(3):
        pipeline.progress(iterator)
    ids = KeyedJaggedTensor(keys=names, values=torch.arange(8), lengths=torch.ones(8).int())
    pooled = model.module.ebc(ids)[names[1]]
    if dist.get_world_size() == 1:  # rows on several ranks are quantized by sparring publish
        quantized = quantize_embeddings(model.module.eval(), dtype=torch.qint8, inplace=False)
        assert (quantized.ebc(ids)[names[1]] - pooled).abs().max() < 0.01
    model.close()


def sequences() -> None:
    model = nn.Module()
    model.ec = EmbeddingCollection(
        tables=[
            EmbeddingConfig(
                name="item_embedding",
                embedding_dim=DIM,
                num_embeddings=NUM_EMBEDDINGS,
                feature_names=["item"],
                weight_init_max=1.0,
                weight_init_min=-1.0,
            )
        ],
        device=DEVICE,
    )
    model.out = nn.Linear(DIM, NUM_EMBEDDINGS)
    fused_params = {"optimizer": EmbOptimType.ADAM, "learning_rate": 0.01, "weight_decay": 0.0}
    distributed = DistributedModelParallel(
        module=model,
        device=DEVICE,
        sharders=[cast(ModuleSharder[nn.Module], EmbeddingCollectionSharder(fused_params))],
    )
    dense = KeyedOptimizerWrapper(
        dict(distributed.named_parameters()), lambda params: torch.optim.Adam(params, lr=0.01)
    )
    optimizer = CombinedOptimizer([distributed.fused_optimizer, dense])
    history = KeyedJaggedTensor.from_lengths_sync(
        keys=["item"], values=torch.tensor([1, 2, 3, 4, 5]), lengths=torch.IntTensor([2, 3])
    ).to(DEVICE)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        embedded = model.ec(history)["item"].to_padded_dense(desired_length=3)
        loss = model.out(embedded).logsumexp(2).sum() - model.out(embedded)[..., 7].sum()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert 0 < model.ec.num_rows()["item_embedding"] <= 5
    distributed.close()


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group(backend="gloo")
    for interaction in ("original", "dcn", "projection"):
        dlrm_main(interaction, adagrad=interaction != "dcn")
    golden()
    fused()
    retrieval()
    sequences()
    dist.destroy_process_group()
    print("done")


if __name__ == "__main__":
    main()
