"""Benchmarks of tables and key operations on a GPU: ``python -m benchmarks.gpu``."""
