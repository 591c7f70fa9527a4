"""Names of core for framework packages and sparring-tiered, besides `sparring.contracts` and

Each name is imported from its module when it is first used. ``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import names_from

__getattr__, __all__ = names_from(__file__, globals())
