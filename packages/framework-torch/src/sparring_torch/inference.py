"""Inference modules: trained modules whose tables are read from elsewhere, or quantized.

    trained module ── quantize_embeddings(module, torch.qint8) ──► rows in files of 8 bits, mapped
                   └─ inference_module(module, storage) ─────────► rows of serving snapshots or a service

Layers and ordinary parameters stay as they are; each agent is replaced by one over another storage.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from sparring import StepContainer, make_plugin_manager, open_storage
from sparring.adapter import StorageLike, TableDeclaration, format_suggestion, make_declaration
from sparring.contracts import Storage
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
from sparring_torch.lookup.train_agent import TrainAgent
from sparring_torch.modules.table_module import list_agents, list_table_modules

__all__ = ["inference_module", "quantize_embeddings"]

StorageOf = Callable[[TrainAgent, TableDeclaration], StorageLike]

_BY_DTYPE: Mapping[object, str] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "int8",
    torch.qint8: "int8",
    torch.quint8: "int8",
    torch.quint4x2: "int4",
}
_NAMES = ("fp32", "fp16", "bf16", "int8", "int4")


def inference_module(
    module: nn.Module, storage: StorageLike, *, inplace: bool = False
) -> nn.Module:
    """A trained module that reads the rows of its tables from `storage`.

    A folder of serving snapshots, or a lookup service, whose shards and replicas the client asks::

        inference_module(model, {"backend": "packed", "path": "served/films"})
        inference_module(model, {"backend": "remote", "config": "client.yaml"})

    Tables keep their names, dims and initial values; ordinary parameters are those of `module`.

    Args:
        module: with tables; of a `DistributedModelParallel` its module is taken.
        storage: what has the rows: one that outlives the process.
        inplace: change `module` itself; otherwise it stays as it is, and a copy is made.

    Returns:
        The module, in evaluation mode. It changes no row, and its tables cannot be trained.

    Raises:
        InvalidArgumentError: no tables in `module`, or those of `storage` are others.
        PluginError: no plugin offers the storage.
        SparringError: the storage cannot be opened. `module` is as it was.
    """
    return _make_inference_module(module, lambda _agent, _table: storage, is_in_place=inplace)


def quantize_embeddings(
    module: nn.Module,
    dtype: torch.dtype | str,
    inplace: bool = False,
    *,
    output_dtype: torch.dtype = torch.float32,
    per_table_weight_dtype: Mapping[str, torch.dtype | str] | None = None,
    backend: str = "packed",
) -> nn.Module:
    """A module for inference whose tables hold quantized rows, as TorchRec's function of this name.

    Rows as they are now are written as a serving snapshot, in the folder for temporary files, and
    mapped; its files are removed at once, and their space is free when the module is gone.
    Embeddings are dequantized when they are looked up. An id without a row reads as its initial
    value, which is not quantized.

    Args:
        module: with tables; of a `DistributedModelParallel` its module is taken.
        dtype: of rows: ``torch.qint8`` (``int8``), ``torch.quint4x2`` (``int4``),
            ``torch.float16`` (``fp16``), ``torch.bfloat16`` (``bf16``) or ``torch.float32``.
        inplace: change `module` itself; otherwise it stays as it is, and a copy is made.
        output_dtype: of embeddings.
        per_table_weight_dtype: table → dtype, in place of `dtype`.
        backend: the storage that quantizes.

    Returns:
        The module, in evaluation mode. It changes no row, and its tables cannot be trained.

    Raises:
        InvalidArgumentError: no tables in `module`, no such table or dtype, or embeddings that a
            dtype cannot hold. `module` is as it was.
        PluginError: the backend, of the package sparring-packed, is not installed.
        UnsupportedError: rows are on several ranks, or the backend does not quantize.
    """
    agents = list_agents(module)
    dtypes = _choose_dtypes(agents, dtype, per_table_weight_dtype or {})
    make = make_plugin_manager().storage(backend).quantized
    if make is None:
        raise UnsupportedError(
            f"quantize_embeddings: the storage {backend!r} does not quantize; leave backend out"
        )
    containers = list({id(each.container): each.container for each in agents}.values())
    for each in containers:
        if each.collective.world_size > 1:
            raise UnsupportedError(
                f"quantize_embeddings: the rows are on {each.collective.world_size} ranks; save them "
                "(container.save(url)), run `sparring publish --quantize`, and read the result by "
                "inference_module"
            )
    with TemporaryDirectory(prefix="sparring-quantized-") as folder:
        storages: dict[int, StorageLike] = {}
        for number, each in enumerate(containers):
            saved, made = f"{folder}/{number}/trained", f"{folder}/{number}/quantized"
            each.save(saved)
            chosen = {name: dtypes[name] for name in each.tables if name in dtypes}
            storages[id(each)] = {"backend": backend, **make(saved, made, chosen)}
        quantized = _make_inference_module(
            module, lambda agent, _table: storages[id(agent.container)], is_in_place=inplace
        )
    for table_module in list_table_modules(quantized):
        table_module.to(output_dtype)
    return quantized


def _make_inference_module(
    module: nn.Module, storage_of: StorageOf, *, is_in_place: bool
) -> nn.Module:
    """`module`, or a copy of it, whose tables are read from other storages."""
    container = StepContainer()
    agents = {
        # Storages are opened now: what is wrong with them is told before the module changes.
        id(agent): TrainAgent(
            [_open_storage(each, storage_of(agent, each)) for each in agent.declarations],
            agent.features,
            container,
        )
        for agent in list_agents(module)
    }
    inner = module.module if isinstance(module, DistributedModelParallel) else module
    if is_in_place:
        for each in list_table_modules(inner):
            each.agent = agents[id(each.agent)]
    else:
        memo: dict[int, Any] = dict(agents)
        inner = copy.deepcopy(inner, memo)
    for each in list_table_modules(inner):
        each.requires_grad_(False)
    return inner.eval()


def _open_storage(declaration: TableDeclaration, storage: StorageLike) -> TableDeclaration:
    """A table in the storage that has its rows, open."""
    table = replace(declaration.table.with_state(0), admission=None, expire=None)
    chosen = make_declaration(table, storage, capacity=None, setting="num_embeddings").storage
    opened = (
        chosen
        if isinstance(chosen, Storage)
        else open_storage(chosen.backend, table, validate=False, **chosen.options)
    )
    if not (opened.capabilities.persistent or opened.capabilities.shared):
        opened.close()
        raise InvalidArgumentError(
            f"table {table.name!r}: a storage {storage!r} begins without rows; name one that has "
            "them, as {'backend': 'packed', 'path': …} or {'backend': 'remote', 'config': …}",
            table=table.name,
        )
    return TableDeclaration(table, opened)


def _choose_dtypes(
    agents: list[TrainAgent],
    dtype: torch.dtype | str,
    chosen: Mapping[str, torch.dtype | str],
) -> dict[str, str]:
    """Table → the name of the dtype of its rows."""
    tables = [name for agent in agents for name in agent.table_names]
    for name in chosen:
        if name not in tables:
            raise InvalidArgumentError(
                f"quantize_embeddings: found table {name!r} in per_table_weight_dtype; "
                f"{format_suggestion(name, tables)}",
                table=name,
            )
    return {name: _dtype_name(chosen.get(name, dtype), name) for name in tables}


def _dtype_name(dtype: object, table: str) -> str:
    name = dtype if dtype in _NAMES else _BY_DTYPE.get(dtype)
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"quantize_embeddings: rows of table {table!r} cannot be {dtype!r}; choose one of "
            f"{', '.join(_NAMES)}, or torch.qint8, torch.quint4x2, torch.float16, torch.bfloat16",
            table=table,
        )
    return name
