"""The TensorFlow adapter: overhead of its op, and a training step compared with `keras.layers.Embedding`.

Requires TensorFlow: ``nox -s benchmarks_tensorflow``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, Timing, alternate
from benchmarks.scale import Scale
from benchmarks.tensorflow_dlrm import measure_dlrm

__all__ = ["contenders", "measure"]

ROWS, DIM, BATCH, RATE = 1_000_000, 16, 8_192, 0.05
BAR_EAGER, BAR_GRAPH, BAR_KERAS = 15.0, 5.0, 1.0
BAR_TFRA_STEP, BAR_TFRA_LOOKUP = 3.0, 5.0
CHAIN = 200
"""Number of ops in one graph, among which the cost of calling the graph is divided."""


def measure(scale: Scale) -> list[Figure]:
    """Measures an op, and steps with native Adagrad, the update method, and gradients by a shadow."""
    if importlib.util.find_spec("tensorflow") is None:
        detail = "TensorFlow is not installed here; run nox -s benchmarks_tensorflow"
        return [Figure(what="TensorFlow adapter", value="not run", detail=detail)]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rounds = 5 if scale.is_quick else 40
    rows = 10_000 if scale.is_quick else ROWS
    return [
        *_overhead(5 * rounds),
        *_steps(rows, rounds),
        _memory(rows, rounds),
        *measure_dlrm(rounds),
    ]


def _overhead(rounds: int) -> list[Figure]:
    import tensorflow as tf

    from sparring_tf.layers.embedding import Embedding
    from sparring_tf.lookup import lookup_ops

    layer = Embedding(DIM, name="overhead")
    ids, rows = tf.constant([1], tf.int64), tf.constant(np.zeros((1, DIM), np.float32))
    layer(ids)
    anchor = layer.trainable_variables[0].value
    number = layer.agent.number("overhead")

    def gather() -> Any:
        return lookup_ops.gather(ids, anchor, anchor.handle, number)

    def chained(op: Callable[[Any], Any]) -> Any:
        @tf.function
        def graph() -> Any:
            found = rows
            for _ in range(CHAIN):
                with tf.control_dependencies([found]):
                    found = op(found)
            return found

        return graph

    def many(op: Callable[[], Any]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(CHAIN):
                op()

        return run

    timings = alternate(
        {
            "gather": many(gather),
            "identity": many(lambda: tf.raw_ops.Identity(input=rows)),
            "gathers": chained(lambda _: gather()),
            "identities": chained(lambda found: tf.raw_ops.Identity(input=found)),
        },
        rounds=rounds,
    )
    micro = {name: each.median / CHAIN * 1e6 for name, each in timings.items()}
    eager, graph = micro["gather"], micro["gathers"] - micro["identities"]
    return [
        Figure(
            what="lookup op of one id, without a graph",
            value=f"{eager:.1f} µs",
            bar=f"≤ {BAR_EAGER:.0f} µs",
            is_reached=eager <= BAR_EAGER,
            detail=f"an identity op in the same rounds: {micro['identity']:.1f} µs",
        ),
        Figure(
            what="the same in a graph, beyond an identity op",
            value=f"{graph:.1f} µs",
            bar=f"≤ {BAR_GRAPH:.0f} µs",
            is_reached=graph <= BAR_GRAPH,
            detail=f"{micro['gathers']:.1f} and {micro['identities']:.1f} µs per op, reading the "
            "anchor included",
        ),
    ]


def contenders(
    rows: int, batches: list[Any], generator: np.random.Generator
) -> dict[str, Callable[[], Any]]:
    """Returns training steps on the next batch, by name, for tables of `rows` rows."""
    import keras
    import tensorflow as tf

    from sparring_tf.layers.embedding import Embedding
    from sparring_tf.optim.optimizer import Optimizer

    target = tf.constant(generator.normal(size=(len(batches[0]), DIM)).astype(np.float32))

    def trained(layer: Any, optimizer: Any) -> Callable[[], Any]:
        variables = layer.trainable_variables
        optimizer.build(variables)

        @tf.function
        def step(ids: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((layer(ids) - target) ** 2)
            optimizer.apply(tape.gradient(loss, variables), variables)
            return loss

        turns = cycle(batches)
        return lambda: float(step(next(turns)))

    def adagrad() -> Any:
        return keras.optimizers.Adagrad(RATE)

    dense = keras.layers.Embedding(rows, DIM)
    dense.build()
    native, fused, shadow = (Embedding(DIM, name=name) for name in ("native", "fused", "shadow"))
    made = {
        "keras": trained(dense, adagrad()),
        "native": trained(native, Optimizer(native, adagrad())),
        "fused": trained(fused, Optimizer(fused, "adagrad", learning_rate=RATE)),
        "shadow": _by_shadow(shadow, batches, target),
    }
    for layer in (native, fused, shadow):
        _fill(layer, rows)
    return made


def _steps(rows: int, rounds: int) -> list[Figure]:
    import tensorflow as tf

    from sparring_tf.layers.embedding import Embedding
    from sparring_tf.optim.optimizer import Optimizer

    generator = np.random.default_rng(0)
    batches = [tf.constant(generator.integers(0, rows, BATCH)) for _ in range(16)]
    timings = alternate(contenders(rows, batches, generator), rounds=rounds)
    layer = Embedding(DIM, name="looked_up")
    Optimizer(layer, "adagrad", learning_rate=RATE)
    _fill(layer, rows)
    lookups = alternate({"ours": _looked_up(layer, batches)}, rounds=rounds)["ours"]
    return [
        *_beside_tfra(batches, rounds, timings["fused"], lookups),
        *(
            _beside_keras(timings, name, what, rows)
            for name, what in (
                ("native", "Keras's Adagrad as written"),
                ("fused", "the update method adagrad"),
            )
        ),
        Figure(
            what="the same step, gradients through a shadow",
            value=f"{timings['shadow'].median * 1e3:.1f} ms",
            detail=f"by the op's own gradient {timings['fused'].median * 1e3:.1f} ms",
        ),
    ]


def _memory(rows: int, rounds: int) -> Figure:
    """Measures a step in a process whose allocator keeps no freed memory."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.tensorflow_memory", str(rows), str(BATCH), str(rounds)],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    peaks = {name: each / 1e6 for name, each in json.loads(ran.stdout.splitlines()[-1]).items()}
    return Figure(
        what="memory that a step takes at its peak, by the op's own gradient",
        value=f"{peaks['fused']:.1f} MB",
        detail=f"through a shadow {peaks['shadow']:.1f} MB, Keras's Adagrad as written "
        f"{peaks['native']:.1f} MB, keras.layers.Embedding {peaks['keras']:.1f} MB",
    )


def _beside_keras(timings: dict[str, Timing], name: str, what: str, rows: int) -> Figure:
    ratio = timings["keras"].median / timings[name].median
    return Figure(
        what=f"training step, {what}",
        value=f"{ratio:.1f} ×",
        bar=f"≥ {BAR_KERAS:.1f} ×",
        is_reached=ratio >= BAR_KERAS,
        detail=f"{timings[name].median * 1e3:.1f} ms; keras.layers.Embedding of {rows:,} × {DIM} "
        f"with Adagrad, {BATCH:,} ids: {timings['keras'].median * 1e3:.1f} ms",
        ratio=ratio,
    )


def _looked_up(layer: Any, batches: list[Any]) -> Callable[[], Any]:

    from sparring_tf.lookup import lookup_ops

    turns = cycle(batches)
    layer(batches[0])  # registers its table with the op
    anchor = layer.trainable_variables[0].value
    number = layer.agent.number(layer.name)
    return lambda: lookup_ops.gather(next(turns), anchor, anchor.handle, number)


def _beside_tfra(batches: list[Any], rounds: int, step: Timing, lookup: Timing) -> list[Figure]:
    """Runs the two processes one after another, because they need different versions of TensorFlow."""
    python = os.environ.get("SPARRING_BENCHMARK_TFRA_PYTHON")
    if python is None:
        return []
    peer = Path(__file__).parent / "peers" / "tfra_training.py"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "batches.npy"
        np.save(path, np.stack([each.numpy() for each in batches]))
        ran = subprocess.run(
            [python, str(peer), str(path), str(DIM), str(rounds)],
            capture_output=True,
            text=True,
            check=True,
        )
    theirs = [median(json.loads(line)) for line in ran.stdout.splitlines()[-2:]]
    figures = []
    for what, bar, their, our in (
        ("training step, the update method adagrad", BAR_TFRA_STEP, theirs[0], step.median),
        ("lookup, the op without a graph", BAR_TFRA_LOOKUP, theirs[1], lookup.median),
    ):
        ratio = their / our
        figures.append(
            Figure(
                what=f"{what}, compared with TFRA",
                value=f"{ratio:.1f} ×",
                bar=f"≥ {bar:.0f} ×",
                is_reached=ratio >= bar,
                detail=f"{our * 1e3:.2f} ms; TFRA's CuckooHashTable {their * 1e3:.2f} ms, "
                f"{BATCH:,} ids × {DIM}",
                ratio=ratio,
            )
        )
    return figures


def _by_shadow(layer: Any, batches: list[Any], target: Any) -> Callable[[], Any]:
    """The alternative: rows are copied into a leaf, whose gradient is passed to the step."""
    import tensorflow as tf

    from sparring.adapter import parse_hyper, resolve_method
    from sparring.contracts import MethodChoice
    from sparring_tf.optim.optimizer import Optimizer

    container = Optimizer(layer, "adagrad", learning_rate=RATE).container
    method = resolve_method("adagrad")
    choice = MethodChoice(method, parse_hyper(method, {"lr": RATE}), 1)
    turns = cycle(batches)

    @tf.function(input_signature=[tf.TensorSpec([None, DIM]), tf.TensorSpec([None], tf.int64)])
    def differentiated(rows: Any, inverse: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(rows)
            loss = tf.reduce_mean((tf.gather(rows, inverse) - target) ** 2)
        return loss, tf.convert_to_tensor(tape.gradient(loss, rows))

    def step() -> float:
        found = container.lookup(layer.name, next(turns).numpy())
        loss, gradient = differentiated(
            tf.convert_to_tensor(found.rows), tf.convert_to_tensor(found.inverse)
        )
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, gradient.numpy())
        container.apply_methods({layer.name: choice})
        return float(loss)

    return step


def _fill(layer: Any, rows: int) -> None:
    """Creates all rows, as after long training."""
    storage = layer.agent.container.storage(layer.name)
    width = storage.table.width
    for begin in range(0, rows, 65_536):
        keys = np.arange(begin, min(begin + 65_536, rows))
        storage.upsert(keys, np.full((len(keys), width), 0.1, np.float32))
