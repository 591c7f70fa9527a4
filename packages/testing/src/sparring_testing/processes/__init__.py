"""Ranks as threads and processes."""
