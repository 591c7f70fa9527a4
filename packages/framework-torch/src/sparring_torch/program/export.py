"""Exports a trained module as a program without Python.

module.eval() ── torch.export ──► graph ── lookups by handle ──► AOTInductor ──► bundle/program.pt2
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, Node

from sparring.errors import UnsupportedError
from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
from sparring_torch.lookup.lookup_ops import LookupModule, module_of_site
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_module import list_table_modules
from sparring_torch.program.bundle import PROGRAM
from sparring_torch.program.library import LIBRARY, load_library, packed

__all__ = ["export_program"]

_ROWS, _OFFSETS, _OFFSETS_AND_END, _LENGTHS = range(4)
"""Formats of bags, as in ``lookup_ops.cc``."""


def export_program(
    module: nn.Module,
    example_inputs: Sequence[Any],
    bundle: str | os.PathLike[str],
    *,
    served: str | os.PathLike[str],
    follow: bool = False,
    dynamic_shapes: Any = None,
) -> Path:
    """Exports a trained module as a bundle that runs without Python, with serving snapshots.

    AOTInductor compiles the program for the processor of this machine. The program does not contain
    embeddings. It looks them up in tables that ``sparring_program.h`` in C++, or `load_program` in
    Python, binds to it at run time. These tables can be refreshed.

    Args:
        module: a module with tables; it is put into evaluation mode.
        example_inputs: one batch of inputs of the module.
        bundle: the folder to create; it must not exist.
        served: a serving snapshot of the module's tables, or a folder of them: the version to which the
            program is bound. `sparring publish` writes them.
        follow: whether the program may read later versions of the tables. Its other parameters stay
            unchanged.
        dynamic_shapes: see `torch.export.export`; None means that inputs have the example's shapes.

    Returns:
        `bundle`.

    Raises:
        InvalidArgumentError: the module has no tables, the folder exists, or a table is missing in
            `served` or has a different dim.
        ProgramError: there is no serving snapshot.
        PluginError: sparring-packed is not installed.
        UnsupportedError: torch is older than 2.10, there is no C++ compiler, or programs do not support
            a lookup of the module.
    """
    inner = module.module if isinstance(module, DistributedModelParallel) else module
    modules = list_table_modules(inner)
    library = load_library()
    dims = {each.table.name: each.table.dim for each in _declarations(modules)}
    binding = packed().program_binding(library.functions, bundle, dims, served, follow)
    inner.eval()
    with torch.no_grad():
        program = torch.export.export(
            inner, tuple(example_inputs), dynamic_shapes=dynamic_shapes, strict=False
        )
    _bind_lookups(program.graph_module.graph, binding.handle)
    program.graph_module.recompile()
    operators = library.folder / LIBRARY
    with packed().new_bundle(binding, f"torch {torch.__version__}", operators) as made:
        torch._inductor.aoti_compile_and_package(program, package_path=str(made / PROGRAM))
    folder: Path = binding.folder
    return folder


def _declarations(modules: Sequence[Any]) -> list[Any]:
    return [each for module in modules for each in module.agent.declarations]


def _bind_lookups(graph: Graph, handle: str) -> None:
    """Replaces lookups in tables of this process by lookups in tables bound to a handle."""
    ours = torch.ops.sparring
    for node in list(graph.nodes):
        if node.target is ours.lookup.default:
            _replace(graph, node, _lookup(node, handle))
        elif node.target is ours.pooled_lookup.default:
            _replace(graph, node, _pooled(node, handle))
        elif "sparring::" in str(getattr(node.target, "_schema", "")):
            raise UnsupportedError(
                f"the program has the operator {node.target} for training; export a module in "
                "evaluation mode, without gradients"
            )
    graph.eliminate_dead_code()


@dataclass(frozen=True, slots=True)
class _BoundLookup:
    target: Any
    arguments: tuple[Any, ...]
    dtype: torch.dtype


def _replace(graph: Graph, node: Node, bound: _BoundLookup) -> None:
    with graph.inserting_before(node):
        made = graph.call_function(bound.target, bound.arguments)
        made.meta = dict(node.meta)
        value = node.meta.get("val")
        if bound.dtype != torch.float32:
            if value is not None:
                made.meta["val"] = value.to(torch.float32)
            found = graph.call_function(
                torch.ops.aten._to_copy.default, (made,), {"dtype": bound.dtype}
            )
            found.meta = dict(node.meta)
            made = found
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _padding(module: Any) -> tuple[bool, int]:
    """Returns whether there is a padding id, and the id, because programs have no empty lists."""
    padding = getattr(module, "padding_idx", None)
    return padding is not None, padding or 0


def _lookup(node: Node, handle: str) -> _BoundLookup:
    ids, _anchor, site, dim = node.args
    module = module_of_site(str(site))
    assert isinstance(module, Embedding)
    return _BoundLookup(
        torch.ops.sparring_program.lookup.default,
        (handle, module.name, dim, *_padding(module), ids),
        module.agent.output_dtype,
    )


def _pooled(node: Node, handle: str) -> _BoundLookup:
    ids, bags, weights, _anchor, site, positions, num_bags, _dim = node.args
    module: LookupModule = module_of_site(str(site))
    tables = [name for name, _ in module.agent.features]
    dim_of = {each.table.name: each.table.dim for each in module.agent.declarations}
    names, dims = "\n".join(tables), [dim_of[each] for each in tables]
    if isinstance(module, EmbeddingCollection):
        assert isinstance(positions, Sequence)
        *of_outputs, num_features = positions
        return _BoundLookup(
            torch.ops.sparring_program.flat_lookup.default,
            (handle, names, dims, ids, bags, of_outputs, num_features, num_bags),
            module.agent.output_dtype,
        )
    if isinstance(module, EmbeddingBag):
        form = (
            _ROWS if bags is None else _OFFSETS_AND_END if module.include_last_offset else _OFFSETS
        )
    elif isinstance(module, EmbeddingBagCollection):
        form = _LENGTHS
        assert isinstance(positions, Sequence)
        positions = list(positions[:-1])
    else:
        raise UnsupportedError(
            f"programs do not support lookups of {type(module).__name__}; use Embedding, EmbeddingBag, "
            "EmbeddingBagCollection or EmbeddingCollection"
        )
    means = [int(mode == "mean") for _, mode in module.agent.features]
    return _BoundLookup(
        torch.ops.sparring_program.pooled_lookup.default,
        (
            handle,
            names,
            dims,
            means,
            *_padding(module),
            form,
            ids,
            bags,
            weights,
            positions,
            num_bags,
        ),
        module.agent.output_dtype,
    )
