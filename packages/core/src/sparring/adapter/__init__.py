"""Names of core for framework adapters and other sparring packages, but not for backends.

The names of this module may change in each release. Third-party plugins import `sparring.contracts`,
which changes by the rules of ``docs/reference/versions.md``.

Each name is imported from its module when it is first used. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import attach_stub

__getattr__, __all__ = attach_stub(__file__, globals())
