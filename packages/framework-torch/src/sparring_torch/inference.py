"""Inference modules: trained modules with quantized tables or with tables in another storage.

    trained module ── quantize_embeddings(module, torch.qint8) ──► rows in mapped files, 8 bits
                   └─ inference_module(module, storage) ─────────► rows of serving snapshots or a service

Layers and ordinary parameters stay unchanged; each agent is replaced by one with another storage.
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
    """Returns a trained module that reads the rows of its tables from `storage`.

    The storage can be a folder of serving snapshots or a lookup service::

        inference_module(model, {"backend": "packed", "path": "served/films"})
        inference_module(model, {"backend": "remote", "config": "client.yaml"})

    Tables keep their names, dims and initial values, and ordinary parameters keep their values.

    Args:
        module: module with tables; a `DistributedModelParallel` is unwrapped.
        storage: a persistent or shared storage that contains the rows.
        inplace: whether to change `module` itself instead of a copy.

    Returns:
        The module in evaluation mode. Its tables cannot be trained, and it changes no row.

    Raises:
        InvalidArgumentError: `module` has no tables, or `storage` contains other tables.
        PluginError: no plugin provides the storage.
        SparringError: the storage cannot be opened. `module` is unchanged.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> import sparring_packed, torch
        >>> from sparring_torch import Embedding, inference_module
        >>> items = Embedding(4, name="items")
        >>> with TemporaryDirectory() as folder:
        ...     _ = items.agent.container.save(f"{folder}/trained")
        ...     _ = sparring_packed.write(f"{folder}/trained", f"{folder}/served/1")
        ...     packed = inference_module(items, {"backend": "packed", "path": f"{folder}/served"})
        >>> torch.equal(packed(torch.tensor([7])), items.eval()(torch.tensor([7])))
        True
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
    """Returns a module for inference with quantized rows, like TorchRec's function of this name.

    The current rows are written as a serving snapshot to the folder for temporary files, and mapped.
    The files are deleted immediately; their space is freed when the module is. Embeddings are
    dequantized when they are looked up. An id without a row reads as its initial value, which is not
    quantized.

    Args:
        module: module with tables; a `DistributedModelParallel` is unwrapped.
        dtype: dtype of rows: ``torch.qint8`` (``int8``), ``torch.quint4x2`` (``int4``),
            ``torch.float16`` (``fp16``), ``torch.bfloat16`` (``bf16``) or ``torch.float32``.
        inplace: whether to change `module` itself instead of a copy.
        output_dtype: dtype of embeddings.
        per_table_weight_dtype: table → dtype, overrides `dtype`.
        backend: the storage that quantizes.

    Returns:
        The module in evaluation mode. Its tables cannot be trained, and it changes no row.

    Raises:
        InvalidArgumentError: `module` has no tables, a table or dtype is unknown, or a dtype cannot
            represent the embeddings. `module` is unchanged.
        PluginError: the backend, from the package sparring-packed, is not installed.
        UnsupportedError: rows are on several ranks, or the backend does not quantize.

    Examples:
        >>> import torch
        >>> from sparring_torch import Embedding, quantize_embeddings
        >>> items = Embedding(4, name="items")
        >>> quantized = quantize_embeddings(items, torch.qint8)
        >>> quantized(torch.tensor([7])).shape
        torch.Size([1, 4])
    """
    agents = list_agents(module)
    dtypes = _choose_dtypes(agents, dtype, per_table_weight_dtype or {})
    make = make_plugin_manager().storage(backend).quantized
    if make is None:
        raise UnsupportedError(
            f"quantize_embeddings: the storage {backend!r} does not support quantization; omit backend"
        )
    containers = list({id(each.container): each.container for each in agents}.values())
    for each in containers:
        if each.collective.world_size > 1:
            raise UnsupportedError(
                f"quantize_embeddings: found rows on {each.collective.world_size} ranks, expected one; "
                "save them with container.save(url), run `sparring publish --quantize`, and read the "
                "result with inference_module"
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
    """Returns `module`, or a copy of it, with tables in other storages."""
    container = StepContainer()
    agents = {
        # Storages are opened first, so that errors occur before the module changes.
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
    """Opens a table in a storage that contains its rows."""
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
            f"table {table.name!r}: found storage {storage!r}, which starts without rows; use one that "
            "contains them, for example {'backend': 'packed', 'path': …} or {'backend': 'remote', "
            "'config': …}",
            table=table.name,
        )
    return TableDeclaration(table, opened)


def _choose_dtypes(
    agents: list[TrainAgent],
    dtype: torch.dtype | str,
    chosen: Mapping[str, torch.dtype | str],
) -> dict[str, str]:
    """Returns the name of the dtype of each table's rows."""
    tables = [name for agent in agents for name in agent.table_names]
    for name in chosen:
        if name not in tables:
            raise InvalidArgumentError(
                f"quantize_embeddings: found unknown table {name!r} in per_table_weight_dtype; "
                f"{format_suggestion(name, tables)}",
                table=name,
            )
    return {name: _dtype_name(chosen.get(name, dtype), name) for name in tables}


def _dtype_name(dtype: object, table: str) -> str:
    name = dtype if dtype in _NAMES else _BY_DTYPE.get(dtype)
    if not isinstance(name, str):
        raise InvalidArgumentError(
            f"quantize_embeddings: found dtype {dtype!r} for table {table!r}, expected one of "
            f"{', '.join(_NAMES)}, or torch.qint8, torch.quint4x2, torch.float16, torch.bfloat16",
            table=table,
        )
    return name
