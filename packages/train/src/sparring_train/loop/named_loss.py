"""`training.loss`: a loss that the configuration names, in place of that of the model."""

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
    """The loss that `training.loss` names, which returns a loss for each example; None: it names none.

    Args:
        config: of the run.
        base: class of losses of the framework.
        has_own: whether the model brings a loss of its own.

    Raises:
        ConfigError: there is no such class, it does not accept its arguments, or the model has its own
            loss.
    """
    given = config.training.loss
    if given is None:
        return None
    if has_own:
        raise ConfigError(
            f"{_SETTING}: model.kind: {config.model.kind} has a loss of its own; leave {_SETTING} out, "
            "or choose a model without one",
            setting=_SETTING,
        )
    found = find_class(given.name, f"{_SETTING}.name", base)
    options = given.options
    if accepts_option(found, "reduction"):
        options = {"reduction": "none", **options}
    return create(found, given.name, _SETTING, options=options)


def check_losses(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raises ConfigError if a loss did not return one number for each example.

    Args:
        found: shape of what it returned.
        expected: shape of the outputs of the model.
    """
    if len(found) != 1 or (None not in (found[0], expected[0]) and found[0] != expected[0]):
        raise ConfigError(
            f"{_SETTING}: returned the shape {tuple(found)} for outputs of the shape {tuple(expected)}, "
            "expected one loss for each example; choose reduction: none, or take no mean or sum",
            setting=_SETTING,
        )
