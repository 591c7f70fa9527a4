"""Layers that look up in tables, and the configuration of tables."""
