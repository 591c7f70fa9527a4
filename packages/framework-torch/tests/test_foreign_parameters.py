"""Every parameter with a name of TorchRec or torch has an effect, or raises if it is not the default.

The parameters are found in the signatures of public callables. A new parameter needs a check in
`foreign_parameters` or `test_foreign_effects`, or an entry in `OUR_PARAMETERS`.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import sparring_torch
from sparring.errors import InvalidArgumentError
from sparring_torch import torchrec

from .foreign_parameters import CHECKS
from .test_foreign_effects import COVERED

OUR_CALLABLES = {
    "DeepFM",  # TorchRec's `SimpleDeepFMNN`
    "ExchangeOptions",
    "MatrixFactorization",
    "ProgramError",
    "TrainAgent",
    "TrainPipeline",
    "collate_jagged",
    "dense_parameters",
    "distribute",
    "distribution_report",
    "export_program",
    "gather_random_state",
    "gather_state",
    "inference_module",
    "load_program",
    "restore",
    "restore_random_state",
    "restore_state",
    "shared_rows",
    "tables_device",
    "without_rows",
}
"""Names that neither TorchRec nor torch has."""

_OF_TABLES = "initializer admission seed storage placement expire"
_OF_COLLECTIONS = "unknown_features storage container shared"
OUR_PARAMETERS = {
    "DistributedModelParallel": "container exchange deadline_seconds find_unused_parameters dense "
    "plugin_manager",
    "Embedding": f"{_OF_TABLES} name container shared",
    "EmbeddingBag": f"{_OF_TABLES} name container shared",
    "EmbeddingBagCollection": _OF_COLLECTIONS,
    "EmbeddingBagCollection.read_embeddings": "table",
    "EmbeddingBagConfig": _OF_TABLES,
    "EmbeddingCollection": _OF_COLLECTIONS,
    "EmbeddingCollection.read_embeddings": "table",
    "EmbeddingConfig": _OF_TABLES,
    "Embedding.read_embeddings": "table",
    "Embedding.from_pretrained": "ids",
    "EmbeddingBag.read_embeddings": "table",
    "EmbeddingBag.from_pretrained": "ids",
    "EmbeddingBag.parse_input": "offsets per_sample_weights",
    "InteractionArch": "device",
    "Optimizer": "non_finite_gradients reset_state tables update",
    "Optimizer.clip_grad_norm_": "dense_parameters",
    "ParameterSharding": "transfer columns",
    "SparseArch": "model",
    "quantize_embeddings": "backend",
}
"""Callable → parameters that TorchRec's or torch's callable of this name does not have."""


def public_callables() -> Iterator[tuple[str, Any]]:
    for module in (torchrec, sparring_torch):
        for name in module.__all__:
            found = getattr(module, name)
            is_ours = str(getattr(found, "__module__", "")).startswith("sparring")
            is_enum = inspect.isclass(found) and issubclass(found, enum.Enum)
            if callable(found) and is_ours and not is_enum and name not in OUR_CALLABLES:
                # Some have a second name, for example collections and renamed functions.
                yield getattr(found, "__name__", name), found


def optional_parameters(name: str, called: Any) -> Iterator[str]:
    for parameter in inspect.signature(called).parameters.values():
        if parameter.default is not inspect.Parameter.empty:
            yield f"{name}.{parameter.name}"


def found_parameters() -> set[str]:
    found: set[str] = set()
    for name, called in public_callables():
        found |= set(optional_parameters(name, called))
        for each in getattr(called, "__mro__", ()):
            if not each.__module__.startswith("sparring_torch"):
                continue
            for method in vars(each):
                # Methods of torch's modules are passed on unchanged.
                is_module = issubclass(called, nn.Module) and method != "forward"
                is_torchs = is_module and hasattr(nn.Module, method)
                bound = getattr(called, method)
                is_method = callable(bound) and not inspect.isclass(bound)
                if method[0] != "_" and is_method and not is_torchs:
                    found |= set(optional_parameters(f"{name}.{method}", bound))
    return found


def test_every_parameter_has_a_check_or_is_ours() -> None:
    ours = {
        f"{called}.{name}" for called, names in OUR_PARAMETERS.items() for name in names.split()
    }
    known = CHECKS.keys() | COVERED | ours
    assert found_parameters() - known == set(), "without a check"
    assert known - found_parameters() == set(), "of no parameter"
    assert not (CHECKS.keys() | COVERED) & ours
    assert not CHECKS.keys() & COVERED


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_foreign_parameter_has_an_effect_or_raises(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize("name", ["Embedding", "EmbeddingBag"])
def test_parameters_that_only_torch_has_are_rejected(name: str) -> None:
    ours, theirs = getattr(sparring_torch, name), getattr(nn, name)
    known = set(inspect.signature(ours).parameters)
    only_theirs = set(inspect.signature(theirs).parameters) - known
    assert {"max_norm", "sparse", "scale_grad_by_freq"} <= only_theirs
    for each in only_theirs:
        for call in (
            lambda given: ours(2, **given),
            lambda given: ours.from_pretrained(torch.ones(2, 2), **given),
        ):
            with pytest.raises((InvalidArgumentError, TypeError), match=each):
                call({each: 1})


def test_our_parameters_differ_from_theirs() -> None:
    peer: Any = pytest.importorskip("torchrec", reason="TorchRec is a peer of benchmarks only")
    for name, names in OUR_PARAMETERS.items():
        called = getattr(peer, name, None) or getattr(peer.distributed, name, None)
        if called is not None:
            theirs = inspect.signature(inspect.unwrap(called.__init__)).parameters
            assert not set(names.split()) & theirs.keys(), name
