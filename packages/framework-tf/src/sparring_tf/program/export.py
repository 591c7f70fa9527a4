"""Exports a trained model as a program without Python.

model(…, training=False) ── tf.function ──► graph with lookups by handle ──► bundle/saved_model
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.program.bundle import PROGRAM, SIGNATURE
from sparring_tf.program.library import import_packed, load_operators, load_reader
from sparring_tf.program.lookups import one_version, trace_for
from sparring_tf.saving.anchors import trained_table
from sparring_tf.saving.saved_state import kept_variables

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
    """Writes a trained model as a bundle that runs without Python and reads serving snapshots.

    The program is a SavedModel without embeddings. It looks them up in tables that
    ``sparring_program.h`` in C++, or `load_program` in Python, binds to it at run time. These
    tables can be refreshed.

    Args:
        model: a Keras model with tables of sparring.
        bundle: the folder to create; it must not exist.
        served: a serving snapshot of the model's tables, or a folder of serving snapshots, of which the
            newest is used. `sparring publish` writes them. The program is bound to its version.
        follow: whether the program may also read later versions. It reads rows and weights from the same
            version, if the version contains parameters; otherwise the weights do not change.
        signature: a `tf.TensorSpec` per argument of the call, in the nested structure of the arguments.
            Defaults to the inputs of a functional or sequential model.
        call: the computation of the program. Defaults to ``model(inputs, training=False)``.

    Returns:
        `bundle`.

    Raises:
        InvalidArgumentError: the model has no tables, the folder exists, `served` does not contain a
            table of the model with the same dim, or `signature` is missing for a model without defined
            inputs.
        ProgramError: there is no serving snapshot.
        UnsupportedError: the model contains ops or resources that a program does not support.
        PluginError: sparring-packed is not installed.
    """
    specs = _specs(model) if signature is None else list(signature)
    tables = [each for each in map(trained_table, model.variables) if each is not None]
    if not tables:
        raise InvalidArgumentError(
            f"export_program: model {getattr(model, 'name', model)!r} has no tables of sparring; "
            "export it with Keras"
        )
    declared = [each for table in tables for each in table.agent.declarations]
    dims = {each.table.name: each.table.dim for each in declared}
    binding = import_packed().program_binding(load_reader(), bundle, dims, served, follow)
    program = tf.Module(name="program")
    variables = kept_variables(model)
    compute = call or (lambda *inputs: model(*inputs, training=False))
    parameters, places = None, None
    if follow:
        weights = _weights_by_name(model, variables)
        parameters = {name: keras.ops.convert_to_numpy(each) for name, each in weights.items()}
        compute = _in_one_version(compute, list(weights.values()))
        read = set(map(id, weights.values()))
        numbers = {id(each): number for number, each in enumerate(variables)}
        places = {name: numbers[id(each)] for name, each in weights.items()}
        variables = [each for each in variables if id(each) not in read]
    program.weights = [each.value for each in variables]
    program.call = tf.function(compute, input_signature=specs, autograph=False)
    serving = _serving(program.call, specs)
    _, library = load_operators()
    with trace_for(binding.handle), _inner_functions_inlined():
        _check_lookups(serving.get_concrete_function().graph)
        release = f"tensorflow {tf.__version__}"
        with import_packed().new_bundle(binding, release, library, parameters, places) as made:
            try:
                # Saving traces functions that were not called yet, so it needs this context, too.
                tf.saved_model.save(program, str(made / PROGRAM), signatures=serving)
            except (
                AssertionError
            ) as error:  # raised by TensorFlow for a resource that is not tracked
                raise UnsupportedError(
                    "export_program: the model has parts that are neither tables of sparring nor "
                    f"weights, such as layers with vocabularies: {error}; leave them out of the "
                    "exported model"
                ) from error
            (made / SIGNATURE).write_text(_signature(made / PROGRAM))
    folder: Path = binding.folder
    return folder


def _in_one_version(compute: Callable[..., Any], weights: Sequence[Any]) -> Callable[..., Any]:
    def compute_in_one_version(*inputs: Any) -> Any:
        with one_version(weights):
            return compute(*inputs)

    return compute_in_one_version


def _weights_by_name(model: Any, variables: Sequence[Any]) -> dict[str, Any]:
    """Returns the weights of a model, without states of random generators, by their names in serving
    snapshots: their paths, or ``PATH#NUMBER`` if an earlier variable has the same path.
    """
    named: dict[str, Any] = {}
    for number, each in enumerate(variables):
        named[each.path if each.path not in named else f"{each.path}#{number}"] = each
    weights = set(map(id, model.weights))
    return {name: each for name, each in named.items() if id(each) in weights}


def _specs(model: Any) -> list[Any]:
    """Returns the inputs of a model with defined inputs, as the specification of its one argument."""
    struct = getattr(model, "_inputs_struct", None)
    if struct is None:
        found = getattr(model, "inputs", None)
        if not found:
            raise InvalidArgumentError(
                f"export_program: model {getattr(model, 'name', model)!r} has no defined inputs; pass a "
                "signature with a tf.TensorSpec for each argument of its call"
            )
        struct = found[0] if len(found) == 1 else found
    return [
        tf.nest.map_structure(lambda each: tf.TensorSpec(each.shape, each.dtype, each.name), struct)
    ]


@contextmanager
def _inner_functions_inlined() -> Iterator[None]:
    """Traces the model's own `tf.function`s as part of the program.

    Otherwise the program would reuse their traces from training, and they would reuse the program's.
    """
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def _check_lookups(graph: Any) -> None:
    """Raises an error if a graph contains ops that only run in this process."""
    definition = graph.as_graph_def()
    nodes = [
        *definition.node,
        *(node for each in definition.library.function for node in each.node_def),
    ]
    for node in nodes:
        if node.op in _OF_TRAINING:
            raise UnsupportedError(
                f"export_program: the program contains the op {node.op} ({node.name}), which requires "
                "Python or tables of this process; leave out tf.py_function and graphs that were traced "
                "before"
            )


def _serving(call: Any, specs: Sequence[Any]) -> Any:
    """Wraps `call` for C++, with tensors as inputs and named tensors as outputs."""
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
    """Returns one line per input and output: name, number of the dtype, operation of the graph, and index
    of the operation's output.
    """
    (graph,) = loader_impl.parse_saved_model(str(saved_model)).meta_graphs
    served = graph.signature_def[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
    lines = []
    for kind, ports in (("input", served.inputs), ("output", served.outputs)):
        for name, tensor in sorted(ports.items()):
            operation, _, place = tensor.name.partition(":")
            lines.append(f"{kind} {name} {tensor.dtype} {operation} {place}\n")
    return "".join(lines)
