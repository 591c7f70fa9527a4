"""Storages: the `memory` backend, wrappers of native storages, and opening, loading, converting and
updating storages."""
