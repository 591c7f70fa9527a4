"""Checks of parameters with names of TorchRec and torch, for `test_foreign_parameters`.

Each check observes an effect of the parameter, or that another value than the default raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import sparring_torch as st
from sparring import ExchangeOptions
from sparring_torch import torchrec as tr

from .foreign_calls import (
    CPU,
    META,
    Check,
    Model,
    asked,
    bag,
    bags,
    config,
    constraints,
    declared,
    differs,
    distributed,
    jagged,
    keyed,
    one,
    place,
    rejects,
    same,
    sequence,
    single,
    topology,
    where,
)

WEIGHTS = torch.ones(4)
INVERSE = (["a", "b"], torch.zeros(2, 3, dtype=torch.int64))
PER_KEY = [[1], [3]]


def of_batches(kind: str) -> dict[str, Check]:
    """Checks of the parameters that all ways to create a `KeyedJaggedTensor` have."""
    prefix = "KeyedJaggedTensor" if kind == "KeyedJaggedTensor" else f"KeyedJaggedTensor.{kind}"
    return {
        f"{prefix}.weights": differs(lambda v: keyed(kind, weights=v), None, WEIGHTS),
        f"{prefix}.stride": rejects(lambda v: keyed(kind, stride=v), 3),
        f"{prefix}.stride_per_key_per_rank": differs(
            lambda v: keyed(kind, stride_per_key_per_rank=v), None, PER_KEY
        ),
        f"{prefix}.inverse_indices": differs(
            lambda v: keyed(kind, inverse_indices=v), None, INVERSE
        ),
    }


def of_empty(name: str, make: Callable[..., Any]) -> dict[str, Check]:
    return {
        f"{name}.empty.is_weighted": differs(lambda v: make("empty", is_weighted=v), False, True),
        f"{name}.empty.device": differs(lambda v: make("empty", device=v), CPU, META),
        f"{name}.empty.values_dtype": differs(
            lambda v: make("empty", values_dtype=v), None, torch.int64
        ),
        f"{name}.empty.weights_dtype": differs(
            lambda v: make("empty", is_weighted=True, weights_dtype=v), None, torch.float64
        ),
        f"{name}.empty.lengths_dtype": differs(
            lambda v: make("empty", lengths_dtype=v), torch.int32, torch.int64
        ),
    }


def of_tables(name: str, kind: Any) -> dict[str, Check]:
    return {
        f"{name}.feature_names": differs(lambda v: declared(v, "feature_names", kind), [], ["ads"]),
        f"{name}.num_embeddings": differs(lambda v: declared(v, "num_embeddings", kind), None, 99),
        f"{name}.data_type": differs(
            lambda v: declared(v, "data_type", kind), tr.DataType.FP32, tr.DataType.BF16
        ),
        f"{name}.init_fn": differs(lambda v: declared(v, "init_fn", kind), None, nn.init.ones_),
        f"{name}.weight_init_min": differs(
            lambda v: declared(v, "weight_init_min", kind), -0.05, -9.0
        ),
        f"{name}.weight_init_max": differs(
            lambda v: declared(v, "weight_init_max", kind), 0.05, 9.0
        ),
    }


def of_single(name: str, kind: Any) -> dict[str, Check]:
    return {
        f"{name}.padding_idx": differs(lambda v: single(kind, v, "padding_idx"), None, 2),
        f"{name}.dtype": differs(lambda v: single(kind, v, "dtype"), torch.float32, torch.float64),
        f"{name}.num_embeddings": differs(lambda v: single(kind, v, "num_embeddings"), None, 99),
        f"{name}.device": differs(lambda v: single(kind, v, "device"), None, "emulated"),
    }


def of_sharder(name: str, kind: Any) -> dict[str, Check]:
    fused_params = {"optimizer": tr.EmbOptimType.SGD, "learning_rate": 0.5}
    half = ExchangeOptions(row_wire_dtype="float16")
    return {
        f"{name}.fused_params": differs(
            lambda v: kind(fused_params=v).fused_params, None, fused_params
        ),
        f"{name}.qcomm_codecs_registry": differs(
            lambda v: kind(qcomm_codecs_registry=v).qcomm_codecs_registry, None, half
        ),
        f"{name}.sharding_types.compute_device_type": rejects(
            lambda v: kind().sharding_types(v), "mtia", default="cpu"
        ),
    }


def qcomms(value: Any, name: str) -> Any:
    return str(tr.get_qcomm_codecs_registry(tr.QCommsConfig(**{name: value})))


CHECKS: dict[str, Check] = {
    # -- batches
    **of_batches("KeyedJaggedTensor"),
    **of_batches("from_lengths_sync"),
    **of_batches("from_offsets_sync"),
    **of_empty("KeyedJaggedTensor", keyed),
    **of_empty("JaggedTensor", jagged),
    "KeyedJaggedTensor.lengths": differs(
        lambda v: tr.KeyedJaggedTensor(["a"], [1, 2], lengths=v).lengths(), [2], [1, 1]
    ),
    "KeyedJaggedTensor.offsets": differs(
        lambda v: tr.KeyedJaggedTensor(["a"], [1, 2], offsets=v).lengths(), [0, 2], [0, 1, 2]
    ),
    "KeyedJaggedTensor.permute.indices_tensor": rejects(
        lambda v: one().permute([0], v), torch.tensor([1])
    ),
    "KeyedJaggedTensor.to.dtype": differs(
        lambda v: one(weights=torch.ones(2)).to(CPU, dtype=v).weights(), None, torch.float64
    ),
    "JaggedTensor.weights": differs(
        lambda v: tr.JaggedTensor([1, 2], v, lengths=[2]).weights_or_none(), None, [1.0, 2.0]
    ),
    "JaggedTensor.lengths": differs(
        lambda v: tr.JaggedTensor([1, 2], lengths=v).lengths(), [2], [1, 1]
    ),
    "JaggedTensor.offsets": differs(
        lambda v: tr.JaggedTensor([1, 2], offsets=v).lengths(), [0], [0, 1]
    ),
    "JaggedTensor.from_dense.weights": differs(
        lambda v: jagged("from_dense", weights=v), None, [torch.ones(3)]
    ),
    "JaggedTensor.from_dense_lengths.weights": differs(
        lambda v: jagged("from_dense_lengths", weights=v), None, torch.ones(1, 3)
    ),
    **{
        f"JaggedTensor.{method}.{name}": differs(
            lambda v, method=method, name=name: jagged(method, **{name: v}), *values
        )
        for method in ("to_padded_dense", "to_padded_dense_weights")
        for name, values in (("desired_length", (None, 1)), ("padding_value", (0.0, 7.0)))
    },
    "KeyedTensor.key_dim": differs(
        lambda v: tr.KeyedTensor(["a", "b"], [1, 1], torch.eye(2) * 3 + 1, v)["b"], 0, 1
    ),
    "KeyedTensor.from_tensor_list.key_dim": rejects(
        lambda v: tr.KeyedTensor.from_tensor_list(["a", "b"], [torch.ones(2, 1)] * 2, key_dim=v),
        0,
        default=1,
    ),
    "KeyedTensor.from_tensor_list.cat_dim": rejects(
        lambda v: tr.KeyedTensor.from_tensor_list(["a", "b"], [torch.ones(2, 1)] * 2, cat_dim=v),
        0,
        default=1,
    ),
    "RandomRecDataset.num_batches": differs(
        lambda v: len(tr.RandomRecDataset(["a"], 2, num_batches=v)), None, 3
    ),
    "RandomRecDataset.num_generated_batches": differs(
        lambda v: len(
            {
                id(batch)
                for batch in tr.RandomRecDataset(["a"], 2, num_batches=20, num_generated_batches=v)
            }
        ),
        10,
        3,
    ),
    # -- tables
    **of_tables("EmbeddingBagConfig", tr.EmbeddingBagConfig),
    **of_tables("EmbeddingConfig", tr.EmbeddingConfig),
    "EmbeddingBagConfig.pooling": differs(
        lambda v: declared(v, "pooling"), tr.PoolingType.SUM, tr.PoolingType.MEAN
    ),
    "EmbeddingBagCollection.is_weighted": differs(
        lambda v: bags(is_weighted=v)(one(weights=torch.tensor([2.0, 3.0]))).values().detach(),
        False,
        True,
    ),
    "EmbeddingBagCollection.device": differs(lambda v: where(bags(device=v)), None, "emulated"),
    "EmbeddingCollection.device": differs(lambda v: where(sequence(device=v)), None, "emulated"),
    **of_single("Embedding", st.Embedding),
    **of_single("EmbeddingBag", st.EmbeddingBag),
    "EmbeddingBag.mode": differs(lambda v: single(st.EmbeddingBag, v, "mode"), "mean", "sum"),
    "EmbeddingBag.forward.offsets": differs(
        lambda v: bag(offsets=v), torch.tensor([0]), torch.tensor([0, 1])
    ),
    "EmbeddingBag.forward.per_sample_weights": differs(
        lambda v: bag(per_sample_weights=v), None, torch.tensor([2.0, 3.0])
    ),
    "PositionWeightedModule.device": differs(
        lambda v: place(tr.PositionWeightedModule(2, v)), None, META
    ),
    "PositionWeightedModuleCollection.device": differs(
        lambda v: place(tr.PositionWeightedModuleCollection({"a": 2}, v)), None, META
    ),
    # -- models
    "DenseArch.device": differs(lambda v: place(tr.DenseArch(2, [3], v)), None, META),
    "OverArch.device": differs(lambda v: place(tr.OverArch(2, [3], v)), None, META),
    "TwoTower.device": differs(
        lambda v: (
            tr.TwoTower(bags(config(), config(name="item")), [2], v)
            .query_proj[0]
            .weight.device.type
        ),
        None,
        META,
    ),
    "MLP.bias": differs(lambda v: len(list(tr.MLP(2, [3], v).parameters())), True, False),
    "MLP.activation": differs(
        lambda v: tr.MLP(2, [3], activation=v)(torch.ones(1, 2)).detach(),
        "relu",
        "sigmoid",
        torch.tanh,
    ),
    "MLP.device": differs(lambda v: place(tr.MLP(2, [3], device=v)), None, META),
    "MLP.dtype": differs(
        lambda v: str(tr.MLP(2, [3], dtype=v)[0].weight.dtype), torch.float32, torch.float64
    ),
    "MLP.activation_on_last": differs(
        lambda v: len(tr.MLP(2, [3], activation_on_last=v)), True, False
    ),
    "LowRankCrossNet.low_rank": differs(
        lambda v: sum(each.numel() for each in tr.LowRankCrossNet(3, 1, v).parameters()), 1, 2
    ),
    "LowRankMixtureCrossNet.num_experts": differs(
        lambda v: len(list(tr.LowRankMixtureCrossNet(3, 1, v).parameters())), 1, 2
    ),
    "LowRankMixtureCrossNet.low_rank": differs(
        lambda v: sum(each.numel() for each in tr.LowRankMixtureCrossNet(3, 1, 1, v).parameters()),
        1,
        2,
    ),
    "LowRankMixtureCrossNet.activation": differs(
        lambda v: tr.LowRankMixtureCrossNet(3, 1, 1, 2, v)(torch.randn(4, 3)).detach(),
        torch.relu,
        torch.tanh,
    ),
    "in_backward_optimizer_filter.include": differs(
        lambda v: [
            name for name, _ in tr.in_backward_optimizer_filter(Model().named_parameters(), v)
        ],
        False,
        True,
    ),
    # -- distribution
    "DistributedModelParallel.env": rejects(
        lambda v: distributed(lambda model: None, env=v), object()
    ),
    "DistributedModelParallel.plan": differs(
        lambda v: distributed(lambda model: model.plan, plan=v), None, {"user": "table_wise"}
    ),
    **of_sharder("ModuleSharder", tr.ModuleSharder),
    **of_sharder("EmbeddingBagCollectionSharder", tr.EmbeddingBagCollectionSharder),
    **of_sharder("EmbeddingCollectionSharder", tr.EmbeddingCollectionSharder),
    "EmbeddingCollectionSharder.use_index_dedup": same(
        lambda v: tr.EmbeddingCollectionSharder(use_index_dedup=v).sharding_types(),
        False,
        True,
        reason="ids that repeat in a batch always travel once",
    ),
    "QCommsConfig.forward_precision": differs(
        lambda v: qcomms(v, "forward_precision"), tr.CommType.FP32, tr.CommType.FP16
    ),
    "QCommsConfig.backward_precision": differs(
        lambda v: qcomms(v, "backward_precision"), tr.CommType.FP32, tr.CommType.FP16
    ),
    **{
        f"QCommsConfig.{name}": rejects(lambda v, name=name: qcomms(v, name), 2)
        for name in (
            "forward_loss_scale",
            "backward_loss_scale",
            "fp8_quantize_dim",
            "fp8_quantize_dim_bwd",
            "fp8_bwd_uses_143",
            "mx4_quantize_dim",
            "mx4_quantize_dim_bwd",
        )
    },
    "get_qcomm_codecs_registry.device": rejects(
        lambda v: tr.get_qcomm_codecs_registry(tr.QCommsConfig(), v), CPU
    ),
    # -- plans
    "EmbeddingShardingPlanner.topology": differs(
        lambda v: asked(topology=v), tr.Topology(2, ddr_cap=9), tr.Topology(4, ddr_cap=9)
    ),
    "EmbeddingShardingPlanner.batch_size": differs(lambda v: asked(batch_size=v), None, 64),
    "EmbeddingShardingPlanner.storage_reservation": differs(
        lambda v: asked(storage_reservation=v), None, tr.FixedPercentageStorageReservation(0.5)
    ),
    "EmbeddingShardingPlanner.constraints": differs(
        lambda v: asked(constraints=v), None, {"user": tr.ParameterConstraints(is_weighted=True)}
    ),
    "EmbeddingShardingPlanner.plan.sharders": rejects(
        lambda v: tr.EmbeddingShardingPlanner().plan(Model(), v), [object()]
    ),
    "EmbeddingShardingPlanner.collective_plan.sharders": rejects(
        lambda v: tr.EmbeddingShardingPlanner().collective_plan(Model(), v), [object()]
    ),
    "HeuristicalStorageReservation.parameter_multiplier": differs(
        lambda v: tr.HeuristicalStorageReservation(0.1, v).available_bytes(10_000, Model()),
        6.0,
        2.0,
    ),
    "HeuristicalStorageReservation.dense_tensor_estimate": differs(
        lambda v: tr.HeuristicalStorageReservation(0.1, 6.0, v).available_bytes(10_000, Model()),
        None,
        9,
    ),
    **{
        f"Topology.{name}": differs(lambda v, name=name: topology(**{name: v}), *values)
        for name, values in (
            ("compute_device", ("cpu", "cuda")),
            ("ddr_cap", (1 << 30, 1 << 20)),
            ("local_world_size", (None, 2)),
            ("intra_host_bw", (None, 1e6)),
            ("inter_host_bw", (None, 1e6)),
        )
    },
    "Topology.hbm_cap": differs(
        lambda v: topology(compute_device="cuda", hbm_cap=v), None, 1 << 20
    ),
    **{
        f"ParameterConstraints.{name}": differs(
            lambda v, name=name: constraints(**{name: v}), *values
        )
        for name, values in (
            ("sharding_types", (None, ["table_wise"])),
            ("compute_kernels", (None, ["dense"])),
            ("pooling_factors", ([1.0], [9.0])),
            ("num_poolings", (None, [3.0])),
            ("is_weighted", (False, True)),
        )
    },
    **{
        f"ParameterConstraints.{name}": rejects(
            lambda v, name=name: tr.ParameterConstraints(**{name: v}), 1
        )
        for name in (
            "min_partition",
            "batch_sizes",
            "cache_params",
            "enforce_hbm",
            "stochastic_rounding",
            "bounds_check_mode",
            "feature_names",
            "output_dtype",
            "device_group",
            "key_value_params",
            "use_virtual_table",
        )
    },
    "ParameterSharding.compute_kernel": rejects(
        lambda v: tr.ParameterSharding("row_wise", v), "dense", default="fused"
    ),
    "ParameterSharding.ranks": differs(
        lambda v: str(tr.ParameterSharding("table_wise", ranks=v).sharding()), None, [1]
    ),
}
