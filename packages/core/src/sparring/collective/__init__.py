"""Collectives of core: ranks as threads of one process, and coordination of tasks of all ranks."""
