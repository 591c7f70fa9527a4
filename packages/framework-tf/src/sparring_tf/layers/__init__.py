"""Layers that look up embeddings in tables, and the configuration of tables."""
