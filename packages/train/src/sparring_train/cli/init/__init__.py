"""``sparring init`` and ``sparring train FILE``: what is understood of files of examples."""
