"""File systems for snapshots: the local one, or any file system of fsspec."""
