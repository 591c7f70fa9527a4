"""The contracts for authors of plugins: base classes, descriptors, hooks and checks.

Each name is imported from its module when it is first used, so this module does not load the native
library. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import attach_stub

__getattr__, __all__ = attach_stub(__file__, globals())
