"""Opens the file system of a URL."""

from __future__ import annotations

from typing import Any

from sparring.errors import InvalidArgumentError, StorageIOError

__all__ = ["open_file_system"]


def open_file_system(
    url: str, unreachable: type[StorageIOError] = StorageIOError
) -> tuple[Any, str]:
    """The file system of fsspec that a path or URL is on, and the path there.

    Args:
        url: a local path, or a URL of fsspec.
        unreachable: the error of one that cannot be reached.

    Raises:
        InvalidArgumentError: fsspec knows no such file system, its package is not installed, or
            the URL lacks what the file system needs.
        StorageIOError: the file system cannot be reached.
    """
    import fsspec  # type: ignore[import-untyped]  # it ships no types

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        raise InvalidArgumentError(
            f"no file system for {url}: {error}; name a local folder, or install the package "
            "that fsspec asks for"
        ) from error
    except OSError as error:
        raise unreachable(
            f"the file system of {url} cannot be reached: {error}; see that it runs and that "
            "the URL is right",
            url=url,
        ) from error
    except Exception as error:
        # A URL without what the client needs fails wherever that is first missed.
        raise InvalidArgumentError(
            f"fsspec cannot open the file system of {url}: {type(error).__name__}: {error}; "
            "give the whole URL, with its host or bucket",
            url=url,
        ) from error
    return system, path
