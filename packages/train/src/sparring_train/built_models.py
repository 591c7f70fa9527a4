"""Builds the model that a configuration names, for one framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparring.errors import ConfigError
from sparring_train.config.sections.own_model import OwnModel
from sparring_train.hookspecs import ModelRequest
from sparring_train.named_classes import create, find_class
from sparring_train.registered_kinds import model_kinds

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["build_model"]


def build_model(
    framework: str,
    base: type,
    embeddings: Callable[[ModelRequest], Any],
    request: ModelRequest,
    manager: PluginManager,
) -> Any:
    """The model of a kind, or of a class of the user's own.

    Args:
        framework: that trains it.
        base: of all models of that framework.
        embeddings: makes the tables of all features, which an own class is called with.
        request: what the model is built of.
        manager: where kinds are looked up.

    Raises:
        ConfigError: its kind has none for this framework, or the class cannot be found or made.
    """
    section = request.section
    if isinstance(section, OwnModel):
        return _own(section, base, embeddings, request)
    build = model_kinds(manager)[section.kind].build
    if framework not in build:
        raise _refusal(
            f"{section.kind} is built for {', '.join(build) or 'no framework'}, not for {framework}; "
            "choose another framework, or another kind"
        )
    return build[framework](request)


def _own(
    section: OwnModel, base: type, embeddings: Callable[[ModelRequest], Any], request: ModelRequest
) -> Any:
    found: type[Any] = find_class(section.kind, "model.kind", base)
    return create(
        found,
        section.kind,
        "model.options",
        embeddings(request),
        len(request.schema.numbers),
        words="the embeddings, the number of number columns",
        options=section.options,
    )


def _refusal(reason: str) -> ConfigError:
    return ConfigError(f"model.kind: {reason}", setting="model.kind")
