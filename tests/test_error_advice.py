"""Tests that everything exists that messages tell their reader to pass, set, call, run or install.

The messages are the texts in the sources of all packages that contain a verb of advice. The sources are
parsed, not imported, so no framework is needed. The tests of each package check that the advice helps.

The file is long because one table lists the owners of every argument that a message contains.
"""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from pydantic import BaseModel

from sparring import make_plugin_manager
from sparring.contracts import get_fields
from sparring.plugins.registry import EXTRAS
from sparring_cli.application import make_application
from sparring_train.config.run_type import run_type

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
NATIVE = sorted(
    path
    for ending in ("cc", "cu", "h", "cuh")
    for path in ROOT.glob(f"packages/*/native/**/*.{ending}")
    if not path.stem.endswith("_test")
)

VERB = re.compile(
    r"\b(add|allow|call|check|choose|convert|create|declare|delete|export|give|increase|install|"
    r"join|leave|load|lower|make|mark|name|needs?|omit|open|pass|publish|put|raise|remove|repair|request|"
    r"restart|run|save|see|select|set|specify|start|train|try|unset|upgrade|use|wrap|write)\b",
    re.I,
)

# `name=…` in a message → everything that must accept an argument, or have a field, of that name.
OWNERS = {
    "accept_loss": ["ParameterClient.save"],
    "admission": ["sparring_torch.EmbeddingBagConfig"],
    "blocking": ["StepContainer.save"],
    "cache": ["PackedOptions"],
    "categorical": ["TableData"],
    "collective": ["StepContainer"],
    "columns": ["TableSharding"],
    "config": ["RemoteOptions"],
    "container": [
        "sparring_tf.Embedding",
        "sparring_tf.EmbeddingBag",
        "sparring_tf.EmbeddingCollection",
        "sparring_torch.Embedding",
        "sparring_torch.EmbeddingBag",
        "sparring_torch.EmbeddingBagCollection",
        "sparring_torch.EmbeddingCollection",
        "sparring_torch.DistributedModelParallel",
    ],
    "dense": ["sparring_tf.Optimizer", "sparring_torch.DistributedModelParallel"],
    "device": ["HkvOptions"],
    "embedding_dim": ["sparring_tf.Embedding"],
    "expected_keys": ["Bloom"],
    "gradient_accumulation_steps": ["sparring_tf.Optimizer"],
    "hyper": ["ParameterClient.push"],
    "history": ["TableData"],
    "initializer": ["sparring_torch.EmbeddingConfig"],
    "input_dim": ["sparring_tf.Embedding"],
    "inverse_indices": ["KeyedJaggedTensor"],
    "buffer_bytes": ["TieredOptions"],
    "is_base": ["SaveOptions"],
    "is_training": ["sparring_jax.Tables.lookup"],
    "is_weighted": ["sparring_torch.EmbeddingBagCollection"],
    "keep": ["distribute"],
    "label": ["TableData"],
    "label_values": ["TableData"],
    "reset_state": ["sparring_torch.Optimizer"],
    "time": ["TableData"],
    "mask_zero": ["sparring_tf.Embedding"],
    "lengths": ["JaggedTensor", "KeyedJaggedTensor"],
    "memory_bytes": ["Bloom", "StepContainer"],
    "mode": ["sparring_torch.EmbeddingBag"],
    "non_finite_gradients": ["StepContainer", "sparring_tf.Optimizer", "sparring_torch.Optimizer"],
    "num_embeddings": ["sparring_torch.Embedding", "sparring_torch.EmbeddingBagConfig"],
    "options": ["StepContainer.save"],
    "plan": ["StepContainer", "sparring_torch.DistributedModelParallel"],
    "placement": ["sparring_tf.TableConfig"],
    "output_dim": ["sparring_tf.Embedding"],
    "padding_id": ["sparring_tf.Embedding"],
    "padding_idx": ["sparring_torch.Embedding"],
    "path": ["RocksdbOptions"],
    "persistent": ["Capabilities"],
    "reason": ["overrides_kit"],
    "role": ["RemoteOptions"],
    "scores": ["Capabilities"],
    "semantics": ["distribute"],
    "served": ["export_program"],
    "service": ["distribute"],
    "state_width": ["sparring.TableConfig"],
    "stddev": ["sparring.Normal"],
    "storage": [
        "sparring_tf.Embedding",
        "sparring_tf.EmbeddingBag",
        "sparring_tf.EmbeddingCollection",
    ],
    "table_dtype": ["sparring_tf.Embedding", "sparring_tf.EmbeddingBag"],
    "table_stacking": ["sparring_tf.DistributedEmbedding"],
    "tables": ["StepContainer.load", "ParameterClient.load"],
    "token": ["ParameterClient.push"],
    "transfer": ["TableSharding"],
    "unknown_features": [
        "sparring_torch.EmbeddingBagCollection",
        "sparring_torch.EmbeddingCollection",
    ],
    "vocabulary_size": ["sparring_tf.Embedding"],
    "update": ["sparring_tf.Optimizer"],
    "weights": ["JaggedTensor", "KeyedJaggedTensor"],
}
# Arguments and options of other libraries.
FOREIGN_ARGUMENTS = {
    "activity_regularizer": "keras.layers.Layer",
    "ckpt_path": "lightning.Trainer.fit",
    "client": "a line of server.token_file",
    "compile": "keras.models.load_model",
    "dampening": "torch.optim.SGD",
    "dtype": "keras.Input",
    "fused": "torch.optim",
    "jit_compile": "tf.function",
    "layout": "torch.nested.nested_tensor",
    "lr": "torch.optim",
    "name": "keras.layers.Layer",
    "save_best_only": "keras.callbacks.ModelCheckpoint",
    "save_weights_only": "keras.callbacks.ModelCheckpoint",
    "weight_decay": "torch.optim",
}
FOREIGN_OPTIONS = {
    "--force-reinstall": "pip",
    "--gpus-per-node": "sbatch",
    "--no-binary": "pip",
    "--no-deps": "pip",
    "--time": "sbatch",
    "--upgrade": "pip",
}
FOREIGN_EXTRAS = {("redis", "hiredis")}
FOREIGN_METHODS = {
    "model.load_state_dict",
    "model.load_weights",
    "model.parameters",
    "model.save_weights",
    "model.state_dict",
    "optimizer.state_dict",
    "optimizer.zero_grad",
}
KEYS_OF_TEMPLATES = {"data.test_fraction"}
"""Keys of kinds that are not installed here."""
FOREIGN_CALLS = {
    "ModelCheckpoint",
    "build",
    "eval",
    "no_grad",
    "requires_grad_",
    "sigmoid",
    "stream",
    "with_values",
}
# Identifiers with a `_` that are not defined in our Python sources.
FACES = {"adapter", "contracts", "torchrec"}
"""Packages within packages that messages may contain."""

FOREIGN_WORDS = {
    "apply_every",  # optax
    "ckpt_path",  # Lightning
    "exclude_from_weight_decay",  # Keras
    "experimental_enable_async_checkpoint",  # TensorFlow
    "fused_params",  # TorchRec
    "get_weights",  # Keras
    "init_process_group",  # torch
    "is_leaf_module",  # torch.fx
    "jax_enable_x64",  # JAX
    "key_data",  # JAX
    "restore_best_weights",  # Keras
    "save_best_only",  # Keras
    "set_weights",  # Keras
    "save_weights_only",  # Keras
    "node_exporter",  # Prometheus
}


class Message(NamedTuple):
    place: str
    text: str


class Function(NamedTuple):
    parameters: frozenset[str]
    takes_any: bool
    """Whether it has ``**named``."""


class Class(NamedTuple):
    package: str
    bases: tuple[str, ...]
    fields: frozenset[str]
    methods: dict[str, Function]


@cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in SOURCES}


def text_of(node: ast.AST) -> str:
    """Returns a literal as its reader sees it, with {} for inserted values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(each) or "{}" for each in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left) + text_of(node.right)
    return ""


def literals(node: ast.AST) -> Iterator[ast.AST]:
    """Returns the outermost literals below a node, without docstrings."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if text_of(node):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from literals(child)


@cache
def messages() -> list[Message]:
    found = []
    for path, tree in trees().items():
        for node in literals(tree):
            text = text_of(node)
            # A single word is a name; markup and programs are not messages.
            if "@hookimpl" in text:
                continue
            if " " in text and VERB.search(text) and "<" not in text.replace("<= ", ""):
                line = getattr(node, "lineno", 0)
                found.append(Message(f"{path.relative_to(ROOT)}:{line}", text))
    return found


@cache
def native_messages() -> list[Message]:
    found = []
    literal = r'"(?:[^"\\\n]|\\.)*"'
    joined = re.compile(rf"{literal}(?:\s*(?:\+[^;\"]*?\+)?\s*{literal})*")
    for path in NATIVE:
        code = re.sub(r"//[^\n]*", "", path.read_text())
        for each in joined.finditer(re.sub(r"#include[^\n]*", "", code)):
            text = "".join(part[1:-1] for part in re.findall(literal, each[0]))
            if " " in text and VERB.search(text):
                found.append(Message(str(path.relative_to(ROOT)), text))
    return found


# -- definitions ----------------------------------------------------------------------


def function_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    given = node.args
    names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    return Function(frozenset(names), given.kwarg is not None)


def last_name(node: ast.expr) -> str:
    return ast.unparse(node).split("[")[0].split(".")[-1]


@cache
def classes() -> dict[str, list[Class]]:
    found: dict[str, list[Class]] = {}
    for path, tree in trees().items():
        package = path.parts[path.parts.index("src") + 1]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            fields, methods = set(), {}
            for each in node.body:
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                    fields.add(each.target.id)
                elif isinstance(each, ast.Assign):
                    fields |= {name.id for name in each.targets if isinstance(name, ast.Name)}
                elif isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    methods[each.name] = function_of(each)
            for each in ast.walk(node):  # attributes that methods set
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    fields.add(each.attr)
            bases = tuple(map(last_name, node.bases))
            made = Class(package, bases, frozenset(fields), methods)
            found.setdefault(node.name, []).append(made)
    return found


@cache
def functions() -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.setdefault(node.name, []).append(function_of(node))
    return found


def lineage(made: Class) -> list[Class]:
    """Returns a class and its bases in this repository; a base in the same package comes first."""
    found, waiting = [made], list(made.bases)
    while waiting:
        known = [each for each in classes().get(waiting.pop(0), []) if each not in found]
        known.sort(key=lambda each: each.package != made.package)
        for base in known[:1]:
            found.append(base)
            waiting += base.bases
    return found


def classes_named(owner: str) -> list[Class]:
    package, _, name = owner.rpartition(".")
    return [each for each in classes().get(name, []) if package in ("", each.package)]


def has_member(name: str, member: str) -> bool:
    return any(
        member in each.fields or member in each.methods
        for made in classes_named(name)
        for each in lineage(made)
    )


def takes(owner: str, argument: str) -> bool:
    """Returns whether all classes, methods and functions of a name accept an argument."""
    if made := classes_named(owner):
        return all(_makes_with(each, argument) for each in made)
    name, _, method = owner.rpartition(".")
    if found := [
        ancestor.methods[method]
        for made in classes_named(name)
        for ancestor in lineage(made)
        if method in ancestor.methods
    ]:
        return all(argument in each.parameters for each in found)
    known = functions().get(owner, [])
    return bool(known) and all(argument in each.parameters for each in known)


def _makes_with(made: Class, argument: str) -> bool:
    for each in lineage(made):
        maker = each.methods.get("__init__")
        if maker is not None:
            if argument in maker.parameters:
                return True
            if not maker.takes_any:
                return False
    return any(argument in each.fields for each in lineage(made))


@cache
def words() -> set[str]:
    """Returns every name that a source or a C header defines, or contains as a whole literal."""
    found: set[str] = set(functions())
    for made in (each for several in classes().values() for each in several):
        found |= made.fields
    for several in functions().values():
        for each in several:
            found |= each.parameters
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.keyword) and node.arg:
                found.add(node.arg)
    headers = "".join(path.read_text() for path in ROOT.glob("packages/*/include/*.h"))
    functions_of_c = set(re.findall(r"\b(sparring_\w+)\(", headers))
    return found | functions_of_c | {path.stem for path in SOURCES} | packages()


@cache
def packages() -> set[str]:
    return {path.parts[path.parts.index("src") + 1] for path in SOURCES}


@cache
def commands() -> dict[str, set[str]]:
    """Returns the options of each command."""
    application: Any = typer.main.get_command(make_application(make_plugin_manager()))
    found = {}
    for name, command in application.commands.items():
        inner = getattr(command, "commands", {}).values()
        found[name] = {"--help"} | {
            option
            for each in (command, *inner)
            for parameter in each.params
            for option in parameter.opts
        }
    return found


class Project(NamedTuple):
    folder: Path
    extras: dict[str, str]
    """Extra → packages that must be installed first."""
    plugins: dict[str, str]
    """Plugin → its module."""


@cache
def projects() -> dict[str, Project]:
    """Returns the relevant parts of the `pyproject.toml` of each distribution."""
    found = {}
    for path in ROOT.glob("packages/*/pyproject.toml"):
        sections = dict(
            re.findall(r"^\[([\w.-]+)\]\n(.*?)(?=^\[|\Z)", path.read_text(), re.M | re.S)
        )
        name = re.findall(r'^name = "(.*)"', sections["project"], re.M)[0]
        extras = sections.get("project.optional-dependencies", "")
        plugins = sections.get("project.entry-points.sparring", "")
        found[name] = Project(
            path.parent,
            dict(re.findall(r'^([\w-]+) = \["([\w.-]+)', extras, re.M)),
            dict(re.findall(r'^([\w-]+) = "([\w.]+)"', plugins, re.M)),
        )
    return found


def has_key(dotted: str) -> bool:
    """Returns whether a configuration has a key; the contents of open sections are not checked."""
    sections: list[type[Any]] = [run_type()]
    for name in dotted.split("."):
        found = [get_fields(each)[name] for each in sections if name in get_fields(each)]
        if not found:
            return not sections
        sections = [inner for each in found for inner in sections_in(each.annotation)]
    return True


def sections_in(annotation: Any) -> list[type[Any]]:
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return [annotation]
    return [found for each in typing.get_args(annotation) for found in sections_in(each)]


# -- advice ---------------------------------------------------------------------------


def advised(pattern: str) -> list[tuple[str, Message]]:
    """Returns all matches of a pattern in the messages, with the message."""
    compiled = re.compile(pattern)
    return [(found, each) for each in messages() for found in compiled.findall(each.text)]


def test_messages_are_found() -> None:
    places = {each.place.split("/")[1] for each in messages()}
    assert places >= {"core", "backend-redis", "backend-hkv", "framework-torch", "framework-tf"}
    assert any("no row was changed" in each.text for each in messages())
    assert any("raise its capacity or memory_bytes" in each.text for each in native_messages())


def test_every_argument_that_a_message_names_is_accepted_by_its_function() -> None:
    named = advised(r"(?<![\w.-])([a-z]\w*)=(?=[^=])")
    unknown = [
        (name, each)
        for name, each in named
        if name not in OWNERS and name not in FOREIGN_ARGUMENTS and f"{name}=value" not in each.text
    ]
    assert not unknown, f"say in OWNERS what takes it: {unknown}"
    unused = {*OWNERS, *FOREIGN_ARGUMENTS} - {name for name, _ in named}
    assert not unused, f"no message names {unused}"


@pytest.mark.parametrize(
    ("owner", "argument"),
    [(owner, argument) for argument, owners in OWNERS.items() for owner in owners],
)
def test_an_advised_argument_is_accepted(owner: str, argument: str) -> None:
    assert takes(owner, argument)


def test_every_option_and_command_that_a_message_names_exists() -> None:
    for command, each in advised(r"(?:`|\(|: |run )sparring ([a-z]+)"):
        assert command in commands(), each
        rest = each.text.split(f"sparring {command}", 1)[1]
        for option in re.findall(r"^(?: [\w.={}]+)* (--[a-z][\w-]*)", rest):
            assert option in commands()[command], each
    ours = set().union(*commands().values())
    for option, each in advised(r"(?<![\w-])(--[a-z][\w-]*)"):
        assert option in ours or option in FOREIGN_OPTIONS, each


def test_every_extra_that_a_message_names_can_be_installed() -> None:
    for distribution, extra, each in (
        (*found, each) for found, each in advised(r"([\w-]+)\[([a-z]\w*)\]")
    ):
        known = projects()[distribution].extras if distribution in projects() else ()
        assert extra in known or (distribution, extra) in FOREIGN_EXTRAS, each


def test_the_extra_that_provides_a_part_installs_it() -> None:
    """`plugins.EXTRAS` is inserted into ``pip install "sparring[…]"``."""
    for names in EXTRAS.values():
        for name, extra in names.items():
            brought = projects()[projects()["sparring"].extras[extra]]
            (module,) = brought.plugins.values()
            plugin = brought.folder / "src" / (module.replace(".", "/") + ".py")
            literals_in = {getattr(each, "value", None) for each in ast.walk(trees()[plugin])}
            assert name in literals_in, f"{module} offers no {name}"


def test_every_key_of_a_configuration_that_a_message_names_exists() -> None:
    sections = "|".join(run_type().model_fields)
    for key, each in advised(rf"(?<![\w.])((?:{sections})(?:\.[a-z_]+)+)"):
        assert key in FOREIGN_METHODS | KEYS_OF_TEMPLATES or has_key(key), each


def test_every_name_of_the_packages_that_a_message_contains_exists() -> None:
    for dotted, each in advised(r"(?<![\w./])((?:sparring\w*)(?:\.[A-Za-z_]\w*)+)"):
        package, *parts = dotted.split(".")
        assert package in packages(), each
        known = words() | FACES
        assert all(part in known or part in classes() for part in parts), each


def test_every_method_that_a_message_names_exists() -> None:
    for dotted, each in advised(r"(?<![\w.])([A-Z]\w+\.[a-z]\w*)"):
        assert has_member(*dotted.split(".")), each
    for name, each in advised(r"(?<!\.)\bcontainer\.([a-z_]+)"):
        assert has_member("StepContainer", name), each


def test_every_call_that_a_message_shows_can_be_made() -> None:
    for name, each in advised(r"(?<![\w.])([A-Za-z_]\w*)\("):
        is_known = name in functions() or name in classes() or name in FOREIGN_CALLS
        assert is_known, each


def test_every_identifier_in_a_message_is_one_of_ours() -> None:
    """Options and settings are named without a sign of it: raise deadline_seconds."""
    word = re.compile(r"(?<![\w./<{-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w/}]|\.(?:h|so|md))")
    known = words() | FOREIGN_WORDS
    for each in [*messages(), *native_messages()]:
        unknown = [found for found in word.findall(each.text) if found not in known]
        assert not unknown, each


# -- that the guard sees ----------------------------------------------------------------


def test_an_argument_of_another_function_is_not_accepted() -> None:
    assert takes("sparring_torch.Optimizer", "non_finite_gradients")
    assert not takes("sparring_torch.Optimizer", "non_finite")
    assert not takes("StepContainer.save", "is_base")
    assert not takes("NoSuchClass", "is_base")
    assert has_key("training.non_finite_gradients")
    assert not has_key("training.non_finite")
    assert not has_member("StepContainer", "forget_state")
    assert "--resume" in commands()["train"]
    assert "--from" in commands()["convert"]
