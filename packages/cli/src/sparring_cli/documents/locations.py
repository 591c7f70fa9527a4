"""Records the location of each value of a configuration."""

from __future__ import annotations

from sparring_cli.documents.problems import ConfigPath, Location

__all__ = ["Locations"]


class Locations:
    """ConfigPath → the location of its key and the location of its value.

    Args:
        top: Location of the whole configuration.
    """

    def __init__(self, top: Location) -> None:
        self._keys: dict[ConfigPath, Location] = {(): top}
        self._values: dict[ConfigPath, Location] = {(): top}

    def add(self, path: ConfigPath, *, key: Location, value: Location) -> None:
        self._keys[path] = key
        self._values[path] = value

    def replace(self, path: ConfigPath, location: Location) -> None:
        """Assigns one location to `path` and everything below it."""
        for locations in (self._keys, self._values):
            for known in [known for known in locations if known[: len(path)] == path]:
                del locations[known]
            locations[path] = location

    def is_known(self, path: ConfigPath) -> bool:
        """Returns whether there is a value at exactly `path`."""
        return path in self._values

    def of_key(self, path: ConfigPath) -> Location:
        """Returns the location of the key, or of its section if the key is missing."""
        return _nearest(self._keys, path)

    def of_value(self, path: ConfigPath) -> Location:
        """Returns the location of the value, or of its section if the value is missing."""
        if path in self._values:
            return self._values[path]
        return _nearest(self._keys, path)


def _nearest(locations: dict[ConfigPath, Location], path: ConfigPath) -> Location:
    while path and path not in locations:
        path = path[:-1]
    return locations[path]
