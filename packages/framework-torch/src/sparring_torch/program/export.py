"""Exports a trained module as a program without Python.

module.eval() ── torch.export ──► graph ── lookups by handle ──► AOTInductor ──► bundle/program.pt2
"""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
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
from sparring_torch.program.library import CPP_HEADER, LIBRARY, load_library, packed
from sparring_torch.state.rows_in_state import without_rows

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
    trained: nn.Module | None = None,
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
        follow: whether the program may read later versions. It reads rows and parameters from the same
            version, if the version contains parameters; otherwise the parameters stay unchanged.
        dynamic_shapes: see `torch.export.export`; None means that inputs have the example's shapes.
        trained: the trained module, if `module` computes its outputs from it: serving snapshots contain
            parameters by their names in this module. Defaults to `module`.

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
    inputs, saved = tuple(example_inputs), None
    traced: nn.Module = inner
    if follow:
        parameters = _parameters(inner, inner if trained is None else trained)
        saved = {name: _array(each) for name, each in parameters.values()}
        tensors = [each for _, each in parameters.values()]
        traced = _WithParameters(inner, list(parameters))
        if dynamic_shapes is not None:
            dynamic_shapes = (
                None,
                [None] * len(tensors),
                _shapes_in_order(inner, dynamic_shapes, len(inputs)),
            )
        inputs = (torch.zeros((), dtype=torch.int64), tensors, *inputs)
    with torch.no_grad():
        program = torch.export.export(traced, inputs, dynamic_shapes=dynamic_shapes, strict=False)
    graph = program.graph_module.graph
    version = _first_input(program) if follow else None
    _bind_lookups(graph, binding.handle if version is None else version)
    program.graph_module.recompile()
    operators = library.folder / LIBRARY
    release = f"torch {torch.__version__}"
    with packed().new_bundle(binding, release, operators, saved) as made:
        (made / "include").mkdir()
        shutil.copy2(CPP_HEADER, made / "include")
        torch._inductor.aoti_compile_and_package(program, package_path=str(made / PROGRAM))
    folder: Path = binding.folder
    return folder


def _declarations(modules: Sequence[Any]) -> list[Any]:
    return [each for module in modules for each in module.agent.declarations]


def _first_input(program: torch.export.ExportedProgram) -> Node:
    """Returns the node of the first input, which follows those of constants."""
    name = program.graph_signature.user_inputs[0]
    found: Node = next(each for each in program.graph_module.graph.nodes if each.name == name)
    return found


class _WithParameters(nn.Module):
    """A module whose parameters are inputs, after the number of the version that lookups read."""

    def __init__(self, module: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self._module = (module,)  # in a tuple, so that its parameters are not those of this module
        self._names = names

    def forward(self, version: Tensor, parameters: list[Tensor], *inputs: Any) -> Any:
        values = dict(zip(self._names, parameters, strict=True))
        return torch.func.functional_call(self._module[0], values, inputs)


def _parameters(module: nn.Module, trained: nn.Module) -> dict[str, tuple[str, Tensor]]:
    """Returns the parameters and saved buffers of a program: their names in `module` → their names in
    serving snapshots, and their values.
    """
    with without_rows():
        state = trained.state_dict(keep_vars=True)
    saved_names: dict[int, str] = {}
    for name, each in state.items():
        if isinstance(each, Tensor):
            saved_names.setdefault(id(each), name)
    return {
        name: (saved_names[id(each)], each.detach())
        for name, each in (*module.named_parameters(), *module.named_buffers())
        if id(each) in saved_names
    }


def _array(tensor: Tensor) -> Any:
    if tensor.dtype != torch.bfloat16:
        return tensor.cpu().numpy()
    import ml_dtypes  # a dependency of sparring, for NumPy arrays of bfloat16

    return tensor.cpu().contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def _shapes_in_order(module: nn.Module, dynamic_shapes: Any, count: int) -> tuple[Any, ...]:
    """Returns the shapes of `count` arguments of a module by position, if they are given by name."""
    if not isinstance(dynamic_shapes, Mapping):
        return tuple(dynamic_shapes)
    names = list(inspect.signature(module.forward).parameters)[:count]
    return tuple(dynamic_shapes.get(name) for name in names)


def _bind_lookups(graph: Graph, handle: str | Node) -> None:
    """Replaces lookups in tables of this process by lookups in tables bound to a handle, or in the
    version whose number is an input.
    """
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


def _operator(name: str, source: str | Node) -> Any:
    """Returns the operator that looks up by a handle, or in a version."""
    found = name if isinstance(source, str) else f"{name}_in"
    return getattr(torch.ops.sparring_program, found).default


def _lookup(node: Node, handle: str | Node) -> _BoundLookup:
    ids, _anchor, site, dim = node.args
    module = module_of_site(str(site))
    assert isinstance(module, Embedding)
    return _BoundLookup(
        _operator("lookup", handle),
        (handle, module.name, dim, *_padding(module), ids),
        module.agent.output_dtype,
    )


def _pooled(node: Node, handle: str | Node) -> _BoundLookup:
    ids, bags, weights, _anchor, site, positions, num_bags, _dim = node.args
    module: LookupModule = module_of_site(str(site))
    tables = [name for name, _ in module.agent.features]
    dim_of = {each.table.name: each.table.dim for each in module.agent.declarations}
    names, dims = "\n".join(tables), [dim_of[each] for each in tables]
    if isinstance(module, EmbeddingCollection):
        assert isinstance(positions, Sequence)
        *of_outputs, num_features = positions
        return _BoundLookup(
            _operator("flat_lookup", handle),
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
        _operator("pooled_lookup", handle),
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
