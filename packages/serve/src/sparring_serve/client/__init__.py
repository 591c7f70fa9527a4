"""Clients of a lookup service: rows by ids, from shards with replicas, within a deadline."""
