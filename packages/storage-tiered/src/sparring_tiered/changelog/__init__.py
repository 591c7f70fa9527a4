"""Change notes: what a trainer publishes about the rows that it has changed.

    change_note.py       bytes of a note, and of the base that readers begin with
    folder_log.py        notes as files of a folder, or below a URL of fsspec
    open_log.py          opens the notes of a table: in its backend, or in a folder
    unpublished_keys.py  keys that have changed since the last note
    change_publisher.py  publishes notes from a container

`sparring_tiered.cache` reads them. ``docs/format/change-notes.md`` describes the bytes.
"""
