"""Storages through the C interface."""
