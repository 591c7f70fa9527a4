"""Tests that everything exists that messages tell their reader to pass, set, call, run or install.

The messages are the texts in the sources of all packages that contain a verb of advice. The sources are
parsed, not imported, so no framework is needed. The tests of each package check that the advice helps.

`tools/source_index.py` finds the messages and what the sources define. The file is long because one table
lists the owners of every argument that a message contains.
"""

from __future__ import annotations

import ast
import re
import sys
import typing
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from sparring import make_plugin_manager
from sparring.contracts import get_fields
from sparring.plugins.registry import EXTRAS
from sparring_train.config.run_type import run_type

sys.path.insert(0, str(Path(__file__).parents[1] / "docs/site"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from commands import find_commands
from source_index import (
    Message,
    classes,
    functions,
    has_member,
    messages,
    native_messages,
    packages,
    projects,
    takes,
    trees,
    words,
)

pytestmark = pytest.mark.slow  # parses all sources

# `name=…` in a message → everything that must accept an argument, or have a field, of that name.
OWNERS = {
    "accept_loss": ["ParameterClient.save"],
    "admission": ["sparring_torch.EmbeddingBagConfig"],
    "base": ["StepContainer.save"],
    "blocking": ["StepContainer.save"],
    "cache": ["PackedOptions"],
    "categorical": ["TableData"],
    "form": ["TableData"],
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
    "item": ["SequenceModel"],
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
    "learning_rate": ["sparring_tf.Optimizer"],
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
    "shared": ["sparring_torch.Embedding", "sparring_torch.EmbeddingBagCollection"],
    "served": ["export_program"],
    "seed": ["sparring_tf.Embedding"],
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
    "user": ["SequenceModel"],
    "weights": ["JaggedTensor", "KeyedJaggedTensor"],
}
# Arguments and options of other libraries.
FOREIGN_ARGUMENTS = {
    "activity_regularizer": "keras.layers.Layer",
    "ckpt_path": "lightning.Trainer.fit",
    "auc": "a metric of sparring publish --min",
    "client": "a line of server.token_file",
    "compile": "keras.models.load_model",
    "dampening": "torch.optim.SGD",
    "dtype": "keras.Input",
    "fused": "torch.optim",
    "initial_scale": "keras.optimizers.LossScaleOptimizer",
    "jit_compile": "tf.function",
    "layout": "torch.nested.nested_tensor",
    "lr": "torch.optim",
    "multi_avg_fn": "torch.optim.swa_utils.AveragedModel",
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
    "model.eval",
    "optimizer.container.assign",
    "model.load_state_dict",
    "model.load_weights",
    "model.parameters",
    "model.save_weights",
    "model.state_dict",
    "optimizer.iterations",
    "optimizer.iterations.assign",
    "optimizer.state_dict",
    "optimizer.zero_grad",
}
KEYS_OF_TEMPLATES = {"data.test_fraction"}
"""Keys of kinds that are not installed here."""
FOREIGN_CALLS = {
    "ModelCheckpoint",
    "build",
    "eval",
    "get_ema_multi_avg_fn",
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
    "clip_grad_norm_",  # torch
    "clip_grad_value_",  # torch
    "functional_call",  # torch
    "get_ema_multi_avg_fn",  # torch
    "get_swa_multi_avg_fn",  # torch
    "ckpt_path",  # Lightning
    "exclude_from_weight_decay",  # Keras
    "experimental_enable_async_checkpoint",  # TensorFlow
    "fused_params",  # TorchRec
    "get_weights",  # Keras
    "init_process_group",  # torch
    "initial_scale",  # Keras
    "is_leaf_module",  # torch.fx
    "jax_enable_x64",  # JAX
    "key_data",  # JAX
    "restore_best_weights",  # Keras
    "save_best_only",  # Keras
    "set_weights",  # Keras
    "update_step",  # Keras
    "save_weights_only",  # Keras
    "node_exporter",  # Prometheus
}


@cache
def commands() -> dict[str, set[str]]:
    """Returns the options of each command, with those of its subcommands."""
    found: dict[str, set[str]] = {}
    for name, command in find_commands(make_plugin_manager()):
        options = {option for each in command.params for option in each.opts}
        for first in name.split()[1:2]:
            found.setdefault(first, {"--help"}).update(options)
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
