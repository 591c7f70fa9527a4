"""Update methods: how gradients change rows.

    hyper-parameters (per table, may change between steps)
         │
    UpdateMethod ── state_width(dim), initial_state(dim) ──► what lies behind an embedding
         └───────── update(rows) ──► embeddings and state, in place

The built-in methods run natively, fused: each row is visited once, its gradient summed and its
embedding and state changed on the spot. A plugin may register methods of its own, in NumPy; see
`sparring.hookspecs.sparring_register_update_methods`.
"""

from sparring.updates.builtin import BUILTIN_METHODS, NativeMethod
from sparring.updates.contract import MethodChoice, UpdateMethod, UpdateRows
from sparring.updates.hyperparameters import HyperParameters
from sparring.updates.resolving import resolve_method

__all__ = [
    "BUILTIN_METHODS",
    "HyperParameters",
    "MethodChoice",
    "NativeMethod",
    "UpdateMethod",
    "UpdateRows",
    "resolve_method",
]
