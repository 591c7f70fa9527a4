"""``sparring publish``, ``sparring serve`` and ``sparring pull``."""
