"""The update methods of core."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparring.contracts.descriptors import API_VERSION, UpdateMethodDescriptor
from sparring.contracts.hookspecs import hookimpl


@hookimpl
def sparring_register_update_methods() -> Sequence[UpdateMethodDescriptor]:
    from sparring.updates.builtin import BUILTIN_METHODS, KERAS_HYPER, keras_method

    builtin = [
        UpdateMethodDescriptor(
            name=name,
            api_version=API_VERSION,
            summary=method.summary,
            options=method.hyperparameters,
            factory=method,
        )
        for name, method in BUILTIN_METHODS.items()
    ]
    of_keras = [
        UpdateMethodDescriptor(
            name=name,
            api_version=API_VERSION,
            summary=keras_method(name).summary,
            options=hyper,
            factory=partial(keras_method, name),
        )
        for name, hyper in KERAS_HYPER.items()
    ]
    return [*builtin, *of_keras]
