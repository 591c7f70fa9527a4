"""Lookups of the next batch while the current one is computed."""
