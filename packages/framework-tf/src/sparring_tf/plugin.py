"""Plugin of sparring-tf. Importing it does not import TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence

from sparring.contracts import API_VERSION, FrameworkDescriptor, hookimpl
from sparring_tf.versions import why_unavailable


@hookimpl
def sparring_register_framework() -> Sequence[FrameworkDescriptor]:
    return [
        FrameworkDescriptor(
            name="tensorflow",
            api_version=API_VERSION,
            summary="TensorFlow: Keras 3 layers and optimizers.",
            unavailable=why_unavailable,
            module="sparring_tf",
        )
    ]
