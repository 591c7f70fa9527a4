"""`training.loss`: a loss class that replaces the loss of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from sparring.errors import ConfigError
from sparring_train.config.run import RunConfig
from sparring_train.named_classes import accepts_option, create, find_class

__all__ = ["check_losses", "named_loss"]

_Loss = TypeVar("_Loss")
_SETTING = "training.loss"


def named_loss(config: RunConfig, base: type[_Loss], *, has_own: bool) -> _Loss | None:
    """Creates the loss of `training.loss`, which returns a loss per example; None if it is not set.

    Args:
        config: configuration of the run.
        base: base class of losses of the framework.
        has_own: whether the model defines its own loss.

    Raises:
        ConfigError: the class does not exist or does not accept its arguments, or the model defines its
            own loss.
    """
    given = config.training.loss
    if given is None:
        return None
    if has_own:
        raise ConfigError(
            f"{_SETTING}: model.kind: {config.model.kind} defines its own loss; remove {_SETTING}, "
            "or choose a model without a loss",
            setting=_SETTING,
        )
    found = find_class(given.name, f"{_SETTING}.name", base)
    options = given.options
    if accepts_option(found, "reduction"):
        options = {"reduction": "none", **options}
    return create(found, given.name, _SETTING, options=options)


def check_losses(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raises `ConfigError` if a loss did not return one number per example.

    Args:
        found: shape of the losses.
        expected: shape of the outputs of the model.
    """
    if len(found) != 1 or (None not in (found[0], expected[0]) and found[0] != expected[0]):
        raise ConfigError(
            f"{_SETTING}: found losses of shape {tuple(found)} for outputs of shape {tuple(expected)}, "
            "expected one loss per example; set reduction: none, or remove the mean or sum",
            setting=_SETTING,
        )
