"""Clients of a lookup service: read rows by id from shards with replicas, within a deadline."""
