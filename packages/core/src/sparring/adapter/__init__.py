"""Names of core for framework packages and other packages of sparring, but not for backends.

Plugins of third parties import `sparring.contracts`, which changes by the rules of
``docs/reference/versions.md``; the names of this module may change with each release.

Each name is imported from its module when it is first used. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import attach_stub

__getattr__, __all__ = attach_stub(__file__, globals())
