"""File systems that hold snapshots: the local one, or any of fsspec."""
