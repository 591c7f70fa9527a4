"""Connections to Redis: deadlines, encryption, topology."""
