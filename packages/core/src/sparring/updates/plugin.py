"""The update methods of core."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.contracts.descriptors import API_VERSION, UpdateMethodDescriptor
from sparring.contracts.hookspecs import hookimpl


@hookimpl
def sparring_register_update_methods() -> Sequence[UpdateMethodDescriptor]:
    from sparring.updates.builtin import BUILTIN_METHODS

    return [
        UpdateMethodDescriptor(
            name=name,
            api_version=API_VERSION,
            summary=method.summary,
            options=method.hyperparameters,
            factory=method,
        )
        for name, method in BUILTIN_METHODS.items()
    ]
