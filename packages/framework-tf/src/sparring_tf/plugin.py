"""What sparring-tf offers to sparring. Importing this imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring.descriptors import API_VERSION, FrameworkDescriptor
from sparring.hookspecs import hookimpl
from sparring_tf.versions import why_unavailable

if TYPE_CHECKING:
    from sparring.config import RunConfig
    from sparring.plugins import PluginManager
    from sparring.training import Progress, TrainResult


@hookimpl
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    return [
        FrameworkDescriptor(
            name="tensorflow",
            api_version=API_VERSION,
            summary="TensorFlow: trains DLRM and matrix factorisation with Keras 3's optimizers.",
            unavailable=why_unavailable,
            train=_train,
        )
    ]


def _train(config: RunConfig, plugin_manager: PluginManager, progress: Progress) -> TrainResult:
    from sparring_tf.training import train

    return train(config, plugin_manager, progress)
