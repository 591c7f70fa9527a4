"""Detects test suites that remove or override standard tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["find_violations", "overrides_kit"]

_Test = TypeVar("_Test", bound=Callable[..., Any])

_REASON = "_sparring_kit_override_reason"


def overrides_kit(*, reason: str) -> Callable[[_Test], _Test]:
    """Marks a test that overrides a test of the kit, and documents the reason.

        @overrides_kit(reason="the server cannot hold a million rows in one call")
        def test_call_of_a_million_rows(self, storage): ...

    Args:
        reason: a sentence for readers who want to know whether the backend conforms.

    Raises:
        ValueError: the reason is empty.
    """
    if not reason.strip():
        raise ValueError(
            f"overrides_kit: reason must not be empty, found {reason!r}; explain why the standard "
            "test does not apply"
        )

    def mark(test: _Test) -> _Test:
        setattr(test, _REASON, reason)
        return test

    return mark


def find_violations(suite: type, standard: type) -> list[str]:
    """Lists the tests of `standard` that `suite` removes or overrides without a reason."""
    violations = []
    for name in sorted(dir(standard)):
        if not name.startswith("test_"):
            continue
        found = getattr(suite, name, None)
        if found is getattr(standard, name) or hasattr(found, _REASON):
            continue
        change = "overrides" if callable(found) else "removes"
        violations.append(
            f"{suite.__name__} {change} {name} without a reason; delete it, or mark it with "
            "@overrides_kit(reason=...)"
        )
    return violations
