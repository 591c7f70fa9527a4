"""Finds update methods of a service for torch optimizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from sparring.errors import UnsupportedError
from sparring_torch.optim.known_optimizers import FusedForm, KnownOptimizer, find_known_optimizer
from sparring_torch.optim.optimizer_probe import probe

__all__ = ["find_form", "find_hyper", "to_update_method"]


def to_update_method(
    optimizer_class: type[torch.optim.Optimizer], hyperparameters: Mapping[str, Any]
) -> KnownOptimizer | str:
    """Returns the update methods for a torch optimizer, or why there is none."""
    layout = probe(optimizer_class, hyperparameters, torch.float32)
    return find_known_optimizer(
        optimizer_class, hyperparameters, {(torch.float32, torch.device("cpu")): layout}
    )


def find_form(known: KnownOptimizer, group: Mapping[str, Any]) -> FusedForm:
    """Returns the update method for the current values of a group.

    Raises:
        UnsupportedError: there is none for these values.
    """
    form = known.find_form(group)
    if isinstance(form, str):
        raise UnsupportedError(
            f"step: no update method of the service is equivalent, because {form}; restore the "
            "hyper-parameters with which the program was distributed"
        )
    return form


def find_hyper(known: KnownOptimizer, group: Mapping[str, Any]) -> dict[str, Any]:
    """Returns hyper-parameters of the update method for the current values of a group.

    Raises:
        UnsupportedError: see `find_form`.
    """
    hyper = find_form(known, group).hyper.model_dump()
    first = "initial_accumulator_value"
    return hyper | {first: group[first]} if first in hyper and first in group else hyper
