"""``sparring publish``, ``sparring serve`` and ``sparring lookup``."""
