"""Caches in front of a backend that a trainer in another process writes to.

    open_cached.py     opens a stack with the option `refresh`
    cached_storage.py  the storage of a reader: cache, filter of existing keys, backend
    cache_fills.py     decides which rows may enter the cache
    follower.py        follows the notes: swaps the filter, reads changed keys again

`sparring_tiered.changelog` contains the notes and the part of the trainer.
``docs/decisions/caches-before-a-backend.md`` describes the design.
"""
