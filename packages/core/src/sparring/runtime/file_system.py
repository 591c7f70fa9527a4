"""Opens the file system of a URL."""

from __future__ import annotations

from typing import Any

from sparring.errors import InvalidArgumentError, StorageIOError

__all__ = ["open_file_system"]


def open_file_system(
    url: str, unreachable: type[StorageIOError] = StorageIOError
) -> tuple[Any, str]:
    """Returns the fsspec file system of a path or URL, and the path on it.

    Args:
        url: a local path, or a URL of fsspec.
        unreachable: class of the error for a file system that cannot be reached.

    Raises:
        InvalidArgumentError: fsspec does not know the file system, its package is not installed, or
            the URL is incomplete.
        StorageIOError: the file system cannot be reached.
    """
    import fsspec  # type: ignore[import-untyped]  # it ships no types

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidArgumentError(
            f"no file system for {url}: {error}; name a local folder, or install the package "
            "that fsspec requires"
        ) from error
    except OSError as error:
        raise unreachable(
            f"the file system of {url} cannot be reached: {error}; check that it is running and "
            "that the URL is correct",
            url=url,
        ) from error
    except Exception as error:
        # Clients raise different errors for an incomplete URL.
        raise InvalidArgumentError(
            f"fsspec cannot open the file system of {url}: {type(error).__name__}: {error}; "
            "use the complete URL, with its host or bucket",
            url=url,
        ) from error
    return system, path
