"""Caches before a backend that a trainer in another process writes to.

    change_note.py     what a trainer tells of a table, and the base that readers begin with
    folder_log.py      notes as files of a folder, or below a URL of fsspec
    open_log.py        finds the notes of a table: in its backend, or in a folder
    open_cached.py     opens a stack that has `refresh` among its options
    options.py         how often, how much at a time
    cached_storage.py  the storage of a reader: cache, filter of existing keys, backend
    cache_fills.py     decides which rows may come into the cache
    follower.py        follows the notes: swaps the filter, reads changed keys again

The trainer's part is `sparring.engine.change_publisher`. ``docs/decisions/caches-before-a-backend.md``
says why.
"""
