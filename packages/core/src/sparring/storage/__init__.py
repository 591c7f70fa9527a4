"""Storages: the oracle in plain Python, stacks of tiers, the native border, loads and updates."""
