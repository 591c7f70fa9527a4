"""An exported program returns the same as its model, with serving snapshots, in Python and in C++."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip(
    "tensorflow", reason="TensorFlow is not installed; see nox -s tests_tensorflow"
)
sparring_packed: Any = pytest.importorskip(
    "sparring_packed", reason="sparring-packed is not installed"
)
if not sparring_packed.library_path().exists():
    pytest.skip("libsparring_packed.so is not built", allow_module_level=True)

import keras

from sparring.errors import InvalidArgumentError, PluginError, UnsupportedError
from sparring_testing.frameworks.exported_program import (
    Ask,
    check_run_without_python,
    check_versions_are_not_mixed,
    damage_files,
)
from sparring_tf import (
    Embedding,
    EmbeddingBag,
    EmbeddingCollection,
    FeatureConfig,
    Optimizer,
    ProgramError,
    TableConfig,
    export_program,
    load_program,
)
from sparring_tf.program.library import load_operators, load_reader

EXAMPLE = Path(__file__).parents[1] / "examples/run_saved_model.cc"


def new_model() -> Any:
    """A model with every kind of lookup and a dense layer."""
    where: dict[str, Any] = {"storage": "memory"}
    country = keras.Input((), dtype="int64", name="country")
    tags = keras.Input((4,), dtype="int64", name="tags")
    weights = keras.Input((4,), dtype="float32", name="weights")
    items = TableConfig(name="items", embedding_dim=4, combiner="sum")
    users = TableConfig(name="users", embedding_dim=2, combiner="sqrtn")
    words = TableConfig(name="words", embedding_dim=3, combiner=None)
    collection = EmbeddingCollection(
        {
            "seen": FeatureConfig(name="seen", table=items),
            "user": FeatureConfig(name="user", table=users),
            "bought": FeatureConfig(name="bought", table=items),
            "word": FeatureConfig(name="word", table=words),
        },
        name="features",
        **where,
    )
    found = collection({"seen": tags, "user": country, "bought": tags, "word": country})
    parts = [
        Embedding(3, name="country_rows", padding_id=0, **where)(country),
        EmbeddingBag(5, name="tag_bags", combiner="mean", **where)(tags, weights),
        *(found[name] for name in ("seen", "user", "bought", "word")),
    ]
    joined = keras.layers.Concatenate()(parts)
    top = keras.layers.Dense(1, trainable=False)(keras.layers.Dropout(0.5)(joined))
    return keras.Model([country, tags, weights], {"score": top, "parts": joined})


def batch_of(size: int, seed: int) -> list[Any]:
    random = np.random.default_rng(seed)
    return [
        random.integers(0, 9, size),
        random.integers(-40, 40, (size, 4)),
        random.random((size, 4), np.float32),
    ]


@dataclass
class Exported:
    """A model in training, its serving snapshots, and its exported program."""

    model: Any
    optimizer: Optimizer
    folder: Path
    num_saved: int = 0

    @property
    def served(self) -> Path:
        return self.folder / "served"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    def train_and_publish(self) -> None:
        for step in range(3):
            with tf.GradientTape() as tape:
                found = self.model(batch_of(16, 100 * self.num_saved + step), training=True)
                loss = tf.reduce_sum(found["parts"]) + tf.reduce_sum(found["score"])
            variables = self.model.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.num_saved += 1
        top = self.model.layers[-1]
        top.kernel.assign_add(tf.fill(top.kernel.shape, 0.02))  # as if it was trained
        top.bias.assign_sub([0.125])
        publish(self.optimizer, self.folder, self.num_saved, [top.kernel, top.bias])

    def answers(self, inputs: list[Any]) -> dict[str, Any]:
        return {name: each.numpy() for name, each in self.model(inputs, training=False).items()}


def publish(optimizer: Optimizer, folder: Path, number: int, weights: Sequence[Any] = ()) -> None:
    saved = folder / f"saved-{number}"
    optimizer.container.save(str(saved))
    files = {}
    if weights:
        arrays = {each.path: keras.ops.convert_to_numpy(each) for each in weights}
        files["parameters"] = sparring_packed.encode_parameters(arrays)
    options = sparring_packed.WriteOptions(model=files)
    sparring_packed.write(str(saved), str(folder / "served" / f"step-{number}"), options=options)


def check_answers(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(np.asarray(found[name]), values, rtol=2e-6, atol=2e-7)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    model = new_model()
    optimizer = Optimizer(model, keras.optimizers.Adagrad(0.1))
    made = Exported(model, optimizer, tmp_path_factory.mktemp("program"))
    made.train_and_publish()
    export_program(model, made.bundle, served=made.served, follow=True)
    return made


def test_a_program_equals_the_model_and_loads_newer_rows_and_parameters(exported: Exported) -> None:
    with load_program(exported.bundle, exported.served) as program:
        first = program.version
        for size in (6, 1, 0, 40):
            inputs = batch_of(size, size)
            check_answers(program(inputs), exported.answers(inputs))
        exported.train_and_publish()
        inputs = batch_of(9, 9)
        newer = exported.answers(inputs)
        assert not np.allclose(program(inputs)["parts"], newer["parts"])
        assert program.refresh()
        assert not program.refresh()
        assert program.version != first
        check_answers(program(inputs), newer)
    with pytest.raises(tf.errors.FailedPreconditionError, match="call sparring_program_bind"):
        program(inputs)


def test_the_program_contains_no_rows_and_no_lookups_of_training(exported: Exported) -> None:
    saved = exported.bundle / "saved_model"
    assert not list((saved / "assets").iterdir())
    graph = (saved / "saved_model.pb").read_bytes()
    assert b"SparringProgramPoolIn" in graph
    assert b"SparringProgramParameter" in graph
    assert b"SparringGather" not in graph
    assert b"anchor" not in b"".join(
        name.encode() for name, _ in tf.train.list_variables(str(saved / "variables/variables"))
    )


def test_versions_with_other_parameters_are_rejected(exported: Exported, tmp_path: Path) -> None:
    top = exported.model.layers[-1]
    inputs = batch_of(4, 3)
    publish(exported.optimizer, tmp_path, 1, [top.kernel, top.bias])
    with load_program(exported.bundle, tmp_path / "served") as program:
        first, expected = program.version, program(inputs)["score"]
        exported.train_and_publish()
        publish(exported.optimizer, tmp_path, 2, [top.kernel])
        with pytest.raises(ProgramError, match=r"has no parameter 'dense.*/bias'"):
            program.refresh()
        assert program.version == first
        np.testing.assert_array_equal(program(inputs)["score"], expected)


def test_a_run_reads_the_version_that_it_holds_after_a_refresh(exported: Exported) -> None:
    ops, _ = load_operators()
    handle = (exported.bundle / "binding.txt").read_text().splitlines()[0]

    def read(version: int) -> tuple[bytes, bytes]:
        rows = ops.sparring_program_gather_in(
            ids=tf.range(9, dtype=tf.int64),
            anchor=tf.zeros([0, 3]),
            version=version,
            handle=handle,
            tables="country_rows",
        )
        return rows.numpy().tobytes(), reader.parameters(version)[0].data.tobytes()

    with load_program(exported.bundle, exported.served) as program:
        reader = load_reader()
        with reader.hold_version(handle) as version:
            before = read(version)
            exported.train_and_publish()
            assert program.refresh()
            assert read(version) == before
            with reader.hold_version(handle) as newer:
                assert all(new != old for new, old in zip(read(newer), before, strict=True))
        with pytest.raises(ProgramError, match="no run holds version number"):
            reader.parameters(version)


def test_runs_read_one_version_while_versions_change(exported: Exported) -> None:
    inputs = batch_of(5, 8)
    with load_program(exported.bundle, exported.served) as program:
        check_versions_are_not_mixed(
            lambda: program(inputs)["score"].numpy().tobytes(),
            program.refresh,
            exported.train_and_publish,
        )


def test_a_program_of_one_version_reads_no_other_version(
    exported: Exported, tmp_path: Path
) -> None:
    copied = tmp_path / "exact"
    export_program(exported.model, copied, served=exported.served / "step-1")
    variables = tf.train.list_variables(str(copied / "saved_model/variables/variables"))
    assert "weights/0/.ATTRIBUTES/VARIABLE_VALUE" in dict(variables)
    with load_program(copied, exported.served / "step-1") as program:
        assert program.version[0] == program.description["served"]["hash"]
        with pytest.raises(ProgramError, match=r"bound to version .*; export it with follow"):
            program.refresh()
    if exported.num_saved == 1:
        exported.train_and_publish()
    with pytest.raises(ProgramError, match=r"is bound to version .* the newest .* is"):
        load_program(copied, exported.served)


def test_damaged_and_foreign_bundles_are_rejected(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no bundle of a program at"):
        load_program(tmp_path, exported.served)
    copied = tmp_path / "copied"
    shutil.copytree(exported.bundle, copied)
    graph = copied / "saved_model/saved_model.pb"
    content = bytearray(graph.read_bytes())
    content[len(content) // 2] ^= 1
    graph.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"saved_model\.pb is damaged"):
        load_program(copied, exported.served)
    description = copied / "bundle.json"
    description.write_text(description.read_text().replace("tensorflow 2", "torch 2"))
    with pytest.raises(
        InvalidArgumentError, match="contains a program of torch, expected tensorflow"
    ):
        load_program(copied, exported.served)


def test_no_damaged_file_of_a_bundle_is_bound(exported: Exported, tmp_path: Path) -> None:
    """Tests Python, which must check before it loads a library, and the C function."""
    library = load_reader()
    copied = tmp_path / exported.bundle.name
    shutil.copytree(exported.bundle, copied)
    names = set()
    for path in damage_files(copied):
        names.add(str(path.relative_to(copied)))
        with pytest.raises(ProgramError, match=re.escape(f"{path} is ")):
            library.bind(copied, str(exported.served))
        with pytest.raises(InvalidArgumentError):
            load_program(copied, exported.served)
    assert names >= {"saved_model/saved_model.pb", "signature.txt", "files.txt", "bundle.json"}
    library.bind(copied, str(exported.served))
    library.release(copied)


def test_models_that_cannot_be_exported_are_rejected(exported: Exported, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ids = keras.Input((), dtype="int64")
    other = keras.Model(ids, Embedding(7, name="country_rows", storage="memory")(ids))
    with pytest.raises(InvalidArgumentError, match=r"'country_rows' of dim 7, but .* has dim 3"):
        export_program(other, out, served=exported.served)
    with pytest.raises(InvalidArgumentError, match="exists; choose another folder"):
        export_program(exported.model, exported.bundle, served=exported.served)
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(InvalidArgumentError, match="has no tables of sparring"):
        export_program(plain, out, served=exported.served)
    with pytest.raises(ProgramError, match="no serving snapshot"):
        export_program(exported.model, out, served=tmp_path)

    words = keras.layers.IntegerLookup(vocabulary=[3, 5], name="vocabulary")
    known = keras.Model(ids, Embedding(3, name="country_rows", storage="memory")(words(ids)))
    with pytest.raises(UnsupportedError, match="parts that are neither tables of sparring nor"):
        export_program(known, out, served=exported.served)

    def by_python(*inputs: Any) -> Any:
        found = exported.model(*inputs)["score"]
        return tf.py_function(lambda each: each, [found], tf.float32)

    with pytest.raises(UnsupportedError, match="contains the op EagerPyFunc"):
        export_program(
            exported.model, out, served=exported.served, call=by_python, signature=[specs()]
        )
    # A graph that was traced before looks up in the tables of this process.
    traced = tf.function(lambda *inputs: exported.model(list(inputs))["score"], autograph=False)
    graph = traced.get_concrete_function(*specs())
    with pytest.raises(UnsupportedError, match="contains the op Sparring"):
        export_program(exported.model, out, served=exported.served, call=graph, signature=specs())
    assert not out.exists()
    assert not list(tmp_path.iterdir())


def test_functions_of_the_model_keep_their_own_lookups(exported: Exported, tmp_path: Path) -> None:
    model = exported.model
    inputs = [tf.constant(each) for each in batch_of(4, 2)]
    expected = model(inputs)["score"]
    for is_traced in (False, True):
        inner = tf.function(lambda *given: model(list(given))["score"], autograph=False)
        if is_traced:
            inner(*inputs)
        signature = [tf.TensorSpec(each.shape, each.dtype) for each in inputs]
        bundle = tmp_path / str(is_traced)
        export_program(model, bundle, served=exported.served, signature=signature, call=inner)
        np.testing.assert_allclose(inner(*inputs), expected, rtol=1e-6)
        with load_program(bundle, exported.served) as program:
            np.testing.assert_allclose(program(*inputs), expected, rtol=1e-6)
        assert not tf.config.functions_run_eagerly()


def specs() -> list[Any]:
    return [
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None, 4], tf.int64),
        tf.TensorSpec([None, 4], tf.float32),
    ]


def test_a_custom_call_is_exported(exported: Exported, tmp_path: Path) -> None:
    def scores(country: Any, tags: Any, weights: Any) -> Any:
        return tf.sigmoid(exported.model([country, tags, weights])["score"][:, 0])

    bundle = tmp_path / "bundle"
    export_program(
        exported.model,
        bundle,
        served=exported.served,
        signature=specs(),
        call=scores,
    )
    inputs = batch_of(5, 3)
    with load_program(bundle, exported.served) as program:
        expected = 1 / (1 + np.exp(-exported.answers(inputs)["score"][:, 0]))
        np.testing.assert_allclose(program(*inputs), expected, rtol=1e-5)


def test_ragged_and_sparse_ids_are_exported(tmp_path: Path) -> None:
    bag = EmbeddingBag(3, name="ragged", storage="memory")
    rows = Embedding(2, name="ragged_rows", storage="memory")

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.rows = bag, rows

        def call(self, ids: Any) -> Any:
            return self.bag(ids.to_sparse()), self.bag(ids), self.rows(ids).flat_values

    model = Model()
    ids = tf.ragged.constant([[1, 2, 3], [], [2]], tf.int64, row_splits_dtype=tf.int64)
    optimizer = Optimizer(model, keras.optimizers.Adagrad(0.1))
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(each) for each in model(ids))
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
    publish(optimizer, tmp_path, 1)
    with pytest.raises(InvalidArgumentError, match="has no defined inputs; pass a signature"):
        export_program(model, tmp_path / "bundle", served=tmp_path / "served")
    spec = tf.RaggedTensorSpec([None, None], tf.int64, 1, tf.int64)
    export_program(model, tmp_path / "bundle", served=tmp_path / "served", signature=[spec])
    with load_program(tmp_path / "bundle", tmp_path / "served") as program:
        for found, expected in zip(program(ids), model(ids), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_ops_reject_invalid_inputs(exported: Exported) -> None:
    ops, _ = load_operators()
    load_reader().bind(exported.bundle, str(exported.served))
    handle = (exported.bundle / "binding.txt").read_text().splitlines()[0]

    def gather(dim: int = 3, **changed: Any) -> Any:
        given = {"handle": handle, "tables": "country_rows"} | changed
        return ops.sparring_program_gather(
            ids=tf.constant([[1, 2]], tf.int64), anchor=tf.zeros([0, dim]), **given
        )

    assert gather().shape == (1, 2, 3)
    with pytest.raises(tf.errors.FailedPreconditionError, match="and the program needs 6"):
        gather(6)
    with pytest.raises(tf.errors.FailedPreconditionError, match="has no table 'nothing'"):
        gather(tables="nothing")
    with pytest.raises(tf.errors.FailedPreconditionError, match="call sparring_program_bind"):
        gather(handle="exact:0:none")

    def pool(lengths: Any, weights: Any = ()) -> Any:
        return ops.sparring_program_pool(
            ids=tf.range(3, dtype=tf.int64),
            lengths=tf.constant(lengths, tf.int64),
            weights=tf.constant(weights, tf.float32, [len(weights)]),
            anchors=[tf.zeros([0, 4])] * 2,
            handle=handle,
            tables="items\nitems",
        )

    assert pool([[1, 0], [1, 1]]).shape == (2, 8)
    for lengths, weights in (([[1, 0], [1, 0]], ()), ([[1, 3], [-1, 0]], ()), ([[3]], ())):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"lengths|features"):
            pool(lengths, weights)
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 weights"):
        pool([[1, 0], [1, 1]], (1.0, 2.0))
    load_reader().release(exported.bundle)


@pytest.mark.long
def test_a_program_runs_from_cpp_without_python(exported: Exported, tmp_path: Path) -> None:
    of_tensorflow, bundle = Path(tf.sysconfig.get_lib()), exported.bundle
    program = tmp_path / "run_saved_model"
    libraries = (bundle / "lib", of_tensorflow)
    subprocess.run(
        ["c++", "-std=c++20", "-O1", str(EXAMPLE), "-o", str(program), f"-I{bundle / 'include'}",
         f"-I{tf.sysconfig.get_include()}", *(f"-L{each}" for each in libraries),
         "-lsparring_packed", "-l:libtensorflow_cc.so.2", "-l:libtensorflow_framework.so.2",
         *(f"-Wl,-rpath,{each}" for each in libraries)],
        check=True,
    )  # fmt: skip
    names = [each.split()[1] for each in (bundle / "signature.txt").read_text().splitlines()]
    folder = tmp_path / "tensors"
    folder.mkdir()

    def publish() -> int:
        exported.train_and_publish()
        return 3 * exported.num_saved

    def check_run(ask: Ask) -> None:
        inputs = batch_of(11, 5)
        for name, each in zip(("country", "tags", "weights"), inputs, strict=True):
            assert name in names
            (folder / f"{name}.shape").write_text(" ".join(map(str, each.shape)))
            (folder / f"{name}.bin").write_bytes(each.tobytes())
        assert ask(f"run {folder}") == "ran"
        found = {
            name: np.fromfile(folder / f"{name}.bin", np.float32).reshape(
                [int(each) for each in (folder / f"{name}.shape").read_text().split()]
            )
            for name in ("parts", "score")
        }
        check_answers(found, exported.answers(inputs))

    check_run_without_python(program, bundle, exported.served, publish, check_run)


def test_without_sparring_packed_the_error_contains_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sparring_packed", None)
    with pytest.raises(PluginError, match="run: pip install sparring-packed"):
        load_program(tmp_path, tmp_path)
