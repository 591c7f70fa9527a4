"""Lookups and prefetches."""
