"""Exports a trained model as a program without Python.

model(…, training=False) ── tf.function ──► graph with lookups by handle ──► bundle/saved_model
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.program.bundle import PROGRAM, SIGNATURE
from sparring_tf.program.library import import_packed, load_operators, load_reader
from sparring_tf.program.lookups import trace_for
from sparring_tf.saving.anchors import trained_table

__all__ = ["export_program"]

_OF_TRAINING = ("SparringGather", "SparringPool", "SparringAttach", "PyFunc", "EagerPyFunc")


def export_program(
    model: Any,
    bundle: str | os.PathLike[str],
    *,
    served: str | os.PathLike[str],
    follow: bool = False,
    signature: Sequence[Any] | None = None,
    call: Callable[..., Any] | None = None,
) -> Path:
    """Writes a trained model as a bundle that runs without Python, over serving snapshots.

    The program is a SavedModel. Embeddings are no part of it: it looks them up in tables that are bound
    to it where it runs, by ``sparring_program.h`` in C++ or by `load_program` in Python, and that are
    refreshed there.

    Args:
        model: of Keras, with tables of sparring.
        bundle: the folder to make; it must not exist.
        served: a serving snapshot of the model's tables, or a folder of them: the version that the
            program is bound to. `sparring publish` writes them.
        follow: the program may read later versions of the same tables, too. Its other weights stay
            as they are now.
        signature: `tf.TensorSpec` of each argument of the call, in the structures that it takes; None:
            the inputs of a functional or sequential model.
        call: what the program computes with the model; None: ``model(inputs, training=False)``.

    Returns:
        `bundle`.

    Raises:
        InvalidArgumentError: no tables in the model; the folder exists; `served` lacks a table of the
            model, or has it with another dim; no `signature` of a model that does not say its inputs.
        ProgramError: there is no serving snapshot.
        UnsupportedError: the model looks up, or holds what a program cannot.
        PluginError: sparring-packed is not installed.
    """
    specs = _specs(model) if signature is None else list(signature)
    tables = [each for each in map(trained_table, model.variables) if each is not None]
    if not tables:
        raise InvalidArgumentError(
            f"model {getattr(model, 'name', model)!r} has no tables of sparring, which a program would "
            "look up in; export it with Keras alone"
        )
    declared = [each for table in tables for each in table.agent.declarations]
    dims = {each.table.name: each.table.dim for each in declared}
    binding = import_packed().program_binding(load_reader(), bundle, dims, served, follow)
    program = tf.Module(name="program")
    program.weights = [each.value for each in model.variables if trained_table(each) is None]
    compute = call or (lambda *inputs: model(*inputs, training=False))
    program.call = tf.function(compute, input_signature=specs, autograph=False)
    serving = _serving(program.call, specs)
    _, library = load_operators()
    with trace_for(binding.handle), _inner_functions_inlined():
        _check_lookups(serving.get_concrete_function().graph)
        with import_packed().new_bundle(binding, f"tensorflow {tf.__version__}", library) as made:
            try:
                # Traces what it has not met, so it belongs into the block, too.
                tf.saved_model.save(program, str(made / PROGRAM), signatures=serving)
            except AssertionError as error:  # TensorFlow's own, of a resource that nothing holds
                raise UnsupportedError(
                    "the model has parts that are neither tables of sparring nor weights, as layers "
                    f"with vocabularies have: {error}; leave them out of the model that is exported"
                ) from error
            (made / SIGNATURE).write_text(_signature(made / PROGRAM))
    folder: Path = binding.folder
    return folder


def _specs(model: Any) -> list[Any]:
    """The inputs of a model that says them, as its one argument."""
    struct = getattr(model, "_inputs_struct", None)
    if struct is None:
        found = getattr(model, "inputs", None)
        if not found:
            raise InvalidArgumentError(
                f"model {getattr(model, 'name', model)!r} does not say its inputs; pass a signature, "
                "with a tf.TensorSpec for each argument of its call"
            )
        struct = found[0] if len(found) == 1 else found
    return [
        tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype, each.name), struct)
    ]


@contextmanager
def _inner_functions_inlined() -> Iterator[None]:
    """Has functions of the model's own traced as parts of the program: neither does that take what they
    traced for training, nor do they keep what is the program's.
    """
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _check_lookups(graph: Any) -> None:
    """Refuses what runs in this process alone."""
    definition = graph.as_graph_def()
    nodes = [
        *definition.node,
        *(node for each in definition.library.function for node in each.node_def),
    ]
    for node in nodes:
        if node.op in _OF_TRAINING:
            raise UnsupportedError(
                f"the program has the op {node.op} ({node.name}), which needs Python or tables of this "
                "process; leave tf.py_function and graphs that were traced before out of the call"
            )


def _serving(call: Any, specs: Sequence[Any]) -> Any:
    """The same for C++: tensors in, and named tensors out."""
    flat = tf.nest.flatten(specs, expand_composites=True)
    named = [
        tf.TensorSpec(each.shape, each.dtype, _word(each.name) or f"input_{place}")
        for place, each in enumerate(flat)
    ]

    def serve(*tensors: Any) -> dict[str, Any]:
        found = call(*tf.nest.pack_sequence_as(specs, tensors, expand_composites=True))
        if isinstance(found, dict):
            return {str(name): each for name, each in found.items()}
        outputs = tf.nest.flatten(found, expand_composites=True)
        return {f"output_{place}": each for place, each in enumerate(outputs)}

    return tf.function(serve, input_signature=named, autograph=False)


def _word(name: str | None) -> str | None:
    return None if name is None else name.replace("/", "_").replace(":", "_")


def _signature(saved_model: Path) -> str:
    """Of each input and output a line: name, number of the dtype, operation of the graph, and which of
    its outputs.
    """
    (graph,) = loader_impl.parse_saved_model(str(saved_model)).meta_graphs
    served = graph.signature_def[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
    lines = []
    for kind, ports in (("input", served.inputs), ("output", served.outputs)):
        for name, tensor in sorted(ports.items()):
            operation, _, place = tensor.name.partition(":")
            lines.append(f"{kind} {name} {tensor.dtype} {operation} {place}\n")
    return "".join(lines)
