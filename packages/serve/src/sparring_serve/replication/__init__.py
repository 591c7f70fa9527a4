"""Replicas of the shards of a parameter service."""
