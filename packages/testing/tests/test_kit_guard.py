"""The guard of the kit, its seed, and its messages to an author who left something out."""

from __future__ import annotations

import pytest

from sparring_testing.guard import find_violations, overrides_kit
from sparring_testing.storages.storage_tests import StorageTests

pytest_plugins = ["pytester"]

_GUARD = "test_no_standard_test_is_removed_or_overridden_without_a_reason"

_SUITE = """
import pytest
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring_testing import StorageTests, overrides_kit

class TestMine(StorageTests):
    @pytest.fixture
    def make_storage(self):
        return lambda table, **options: MemoryStorage(table, MemoryOptions(**options))
"""


def _run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_mine=source)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def test_guard_accepts_an_untouched_suite(pytester: pytest.Pytester) -> None:
    _run(pytester, _SUITE, "-k", "no_standard_test").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("test_flush_changes_nothing = None", "removes test_flush_changes_nothing"),
        ("def test_flush_changes_nothing(self): pass", "overrides test_flush_changes_nothing"),
    ],
)
def test_guard_fails_on_a_change_without_a_reason(
    pytester: pytest.Pytester, change: str, complaint: str
) -> None:
    result = _run(pytester, f"{_SUITE}\n    {change}\n", "-k", "no_standard_test")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*TestMine {complaint} without a reason*"])


def test_guard_accepts_a_change_with_a_reason(pytester: pytest.Pytester) -> None:
    change = """
    @overrides_kit(reason="the server cannot flush")
    def test_flush_changes_nothing(self): pass
"""
    _run(pytester, _SUITE + change, "-k", "no_standard_test").assert_outcomes(passed=1)


def test_guard_itself_cannot_be_overridden() -> None:
    with pytest.raises(TypeError, match="protects all other tests"):
        type("TestMine", (StorageTests,), {_GUARD: lambda self: None})


def test_guard_sees_every_test_of_every_theme() -> None:
    names = {name for mixin in StorageTests.__mro__ for name in vars(mixin) if "test_" in name[:5]}
    assert len(names) > 80
    removed = type("TestMine", (StorageTests,), dict.fromkeys(names - {_GUARD}))
    assert len(find_violations(removed, StorageTests)) == len(names) - 1


def test_override_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="reason"):
        overrides_kit(reason=" ")


def test_suite_without_make_storage_is_advised_to_define_it(pytester: pytest.Pytester) -> None:
    source = "from sparring_testing import StorageTests\nclass TestMine(StorageTests): pass\n"
    result = _run(pytester, source, "-k", "test_last_upsert_wins")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*TestMine must define the fixture make_storage*"])


def test_suite_without_bounded_storages_reports_why_it_skips(pytester: pytest.Pytester) -> None:
    result = _run(pytester, _SUITE, "-rs", "-k", "capacity_is_never_exceeded or lru_evicts")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*bounded_options is empty: this backend has no bounded storages"])
    result.stdout.fnmatch_lines(["*bounded_options has no 'lru': this backend does not support it"])


def test_failed_test_prints_the_seed_that_repeats_it(pytester: pytest.Pytester) -> None:
    failing = """
    @overrides_kit(reason="shows random numbers")
    def test_last_upsert_wins(self, rng):
        assert 0, int(rng.integers(2**60))
"""
    outputs = []
    for seed in (7, 7, 8):
        result = _run(pytester, _SUITE + failing, "-k", "last_upsert", f"--sparring-seed={seed}")
        result.stdout.fnmatch_lines([f"to repeat this test: --sparring-seed={seed}"])
        lines = result.outlines
        outputs.append(next(line for line in lines if line.startswith("E  ")))
    assert outputs[0] == outputs[1] != outputs[2]


def test_failed_assertion_inside_the_kit_is_explained(pytester: pytest.Pytester) -> None:
    broken = (
        _SUITE.replace("MemoryStorage(table", "Broken(table")
        + """
class Broken(MemoryStorage):
    def _size_impl(self):
        return 0 if not self._entries else 12345
"""
    )
    result = _run(pytester, broken, "-k", "test_size_counts_rows")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert 12345 == 60*"])


def test_kit_names_the_extra_if_hypothesis_is_missing(pytester: pytest.Pytester) -> None:
    result = _run(
        pytester,
        """
import sys
import pytest

def test_import(monkeypatch):
    for name in list(sys.modules):
        if name.startswith(("hypothesis", "sparring_testing")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    import sparring_testing
    with pytest.raises(ModuleNotFoundError, match=r"sparring\\[testing\\]"):
        sparring_testing.StorageTests
""",
    )
    result.assert_outcomes(passed=1)
