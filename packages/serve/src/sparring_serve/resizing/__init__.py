"""Moves partitions between the shards of a parameter service while it answers calls."""
