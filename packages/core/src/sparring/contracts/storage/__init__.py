"""Contracts of storages: operations, results, updates, optional parts."""
