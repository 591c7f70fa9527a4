"""Change notes, by which a trainer publishes the keys of changed rows.

    change_note.py       bytes of a note, and of the base from which readers start
    folder_log.py        notes as files in a local folder or a URL of fsspec
    open_log.py          opens the notes of a table: in its backend, or in a folder
    unpublished_keys.py  keys that have changed since the last note
    change_publisher.py  publishes notes from a container

`sparring_tiered.cache` reads them. ``docs/format/change-notes.md`` describes the bytes.
"""
