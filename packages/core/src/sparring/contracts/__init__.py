"""The contracts that authors of plugins read and may rely on.

Each name is imported from its module when it is first used; nothing here loads the native library.
``__init__.pyi`` lists the names.
"""

from __future__ import annotations

from sparring._lazy import names_from

__getattr__, __all__ = names_from(__file__, globals())
