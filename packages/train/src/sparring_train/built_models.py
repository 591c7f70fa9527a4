"""Builds the model of a configuration for one framework."""

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
    """Builds the model of a registered kind, or of a user's class.

    Args:
        framework: framework that trains the model.
        base: base class of all models of that framework.
        embeddings: creates the tables of all features, which a user's class is called with.
        request: inputs of the model.
        manager: finds kinds.

    Raises:
        ConfigError: the kind does not support the framework, or the class cannot be found or created.
    """
    section = request.section
    if isinstance(section, OwnModel):
        return _own(section, base, embeddings, request)
    build = model_kinds(manager)[section.kind].build
    if framework not in build:
        raise _refusal(
            f"{section.kind} supports {', '.join(build) or 'no framework'}, found framework: "
            f"{framework}; choose another framework, or another kind"
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
        words="the embeddings, the number of numeric columns",
        options=section.options,
    )


def _refusal(reason: str) -> ConfigError:
    return ConfigError(f"model.kind: {reason}", setting="model.kind")
