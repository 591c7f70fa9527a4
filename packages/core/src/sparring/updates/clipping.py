"""Gradient clipping for methods that do not clip by themselves."""

from __future__ import annotations

import numpy as np

from sparring.contracts.hyperparameters import HyperParameters
from sparring.contracts.results import Rows

__all__ = ["clip_gradients"]


def clip_gradients(gradients: Rows, hyper: HyperParameters) -> None:
    """Clips ``(n, dim)`` in place, by value and then by the norm of each row."""
    if hyper.clip_value > 0:
        np.clip(gradients, -hyper.clip_value, hyper.clip_value, out=gradients)
    if hyper.clip_norm > 0:
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        gradients *= np.where(
            norms > hyper.clip_norm, hyper.clip_norm / np.maximum(norms, hyper.clip_norm), 1
        )
