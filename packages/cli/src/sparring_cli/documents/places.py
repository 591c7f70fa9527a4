"""Remembers where each value of a configuration was written."""

from __future__ import annotations

from sparring_cli.documents.problems import ConfigPath, Place

__all__ = ["Places"]


class Places:
    """ConfigPath → the place of its key and the place of its value.

    Args:
        top: the place of the whole configuration.
    """

    def __init__(self, top: Place) -> None:
        self._keys: dict[ConfigPath, Place] = {(): top}
        self._values: dict[ConfigPath, Place] = {(): top}

    def add(self, path: ConfigPath, *, key: Place, value: Place) -> None:
        self._keys[path] = key
        self._values[path] = value

    def replace(self, path: ConfigPath, place: Place) -> None:
        """Everything from `path` downwards now comes from one place."""
        for places in (self._keys, self._values):
            for known in [known for known in places if known[: len(path)] == path]:
                del places[known]
            places[path] = place

    def is_known(self, path: ConfigPath) -> bool:
        """Whether something was written at exactly `path`."""
        return path in self._values

    def of_key(self, path: ConfigPath) -> Place:
        """Where the key stands; for one that is missing, where its section stands."""
        return _nearest(self._keys, path)

    def of_value(self, path: ConfigPath) -> Place:
        """Where the value stands; for one that is missing, where its section stands."""
        if path in self._values:
            return self._values[path]
        return _nearest(self._keys, path)


def _nearest(places: dict[ConfigPath, Place], path: ConfigPath) -> Place:
    while path and path not in places:
        path = path[:-1]
    return places[path]
