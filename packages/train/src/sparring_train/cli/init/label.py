"""Chooses the label column for ``sparring init``, and leaves out columns that are known only with it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring.errors import DataError
from sparring_train.cli.init.findings import Doubt, Findings
from sparring_train.cli.init.words import Words
from sparring_train.data.column_names import QUANTITIES, is_outcome, split_column_name
from sparring_train.data.table.summary import ColumnSummary, TableSummary
from sparring_train.quality.predictions import auc

__all__ = ["NO_LABEL", "ChosenLabel", "choose_label", "leave_out_outcomes"]

NO_LABEL = "none"
"""Value of the argument ``label`` if no column is one."""

_YES = frozenset(("yes", "y", "true", "t", "on", "positive", "ja", "oui", "si", "sí"))
_NO = frozenset(("no", "n", "false", "f", "off", "negative", "nein", "non"))
_SHOWN = 4
_MAX_RATINGS = 11
"""Maximum number of distinct values of a column that may be a rating."""
_MIN_OUTCOMES = 30
"""Minimum number of non-zero values that prove that a column depends on the label."""
_MOSTLY = 0.95
_RATINGS = frozenset(("rating", "ratings", "stars", "score"))

Floats = npt.NDArray[np.float64]


@dataclass(slots=True)
class ChosenLabel:
    """The column of labels."""

    name: str
    is_binary: bool
    """Whether its values are 0 and 1."""
    why: str
    values: dict[str, float] = field(default_factory=dict)
    """Text → number, for `data.label_values`."""


def choose_label(
    path: str, summary: TableSummary, words: Words, findings: Findings, *, may_guess: bool
) -> ChosenLabel | None:
    """Returns the label, and replaces its texts in `summary` with numbers.

    Args:
        path: path of the files, for messages.
        summary: columns of the files.
        words: arguments of the command.
        findings: receives remarks, and a doubt if no name is usual for labels.
        may_guess: whether a column may be chosen only because of its values.

    Raises:
        DataError: the label consists neither of numbers nor of texts with a known meaning.
    """
    others = {each for names in words.columns.values() for each in names}
    name, why = words.columns.get("label", [None])[0], "given"
    if name == NO_LABEL:
        return None
    if name is None:
        name, why = summary.likely_label(others), "name of labels"
    if name is None and may_guess:
        name, why = _by_values(summary, others, findings), "values of labels"
    if name is None:
        return None
    meaning = dict(words.data.label_values) if words.data is not None else {}
    array = summary.values[name]
    meaning = meaning or _meaning(array)
    if not meaning and not _is_number(array.type):
        found = array.drop_null().unique().to_pylist()
        listed = ", ".join(map(repr, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
        shown = [str(each) for each in found[:2]] + ["yes", "no"][len(found[:2]) :]
        raise DataError(
            f"{path}: the label {name} is {array.type} ({listed}), expected 0 and 1, booleans, or "
            f"numbers; specify a number for each value: 'label_values={{{shown[0]}: 1, {shown[1]}: 0}}'",
            path=path,
            column=name,
        )
    if meaning:
        texts = summary.sample.texts.get(name, array).cast(pyarrow.string())
        places = pc.index_in(texts, pyarrow.array(list(meaning)))
        summary.values[name] = pyarrow.array(list(meaning.values()), pyarrow.float64()).take(places)
        summary.sample.wrong.pop(name, None)
    is_binary = _mark_strays(summary, name, findings)
    return ChosenLabel(name, is_binary, why, meaning)


def _is_number(kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _mark_strays(summary: TableSummary, name: str, findings: Findings) -> bool:
    """Returns whether the label is 0 or 1. If few rows have another value, these rows are bad."""
    array = summary.values[name]
    values = _floats(array)
    is_zero_or_one, is_given = np.isin(values, (0.0, 1.0)), ~np.isnan(values)
    strays = is_given & ~is_zero_or_one
    if not strays.any():
        return True
    if strays.sum() > (1 - _MOSTLY) * is_given.sum() or split_column_name(name) & _RATINGS:
        return False
    if len(np.unique(values[is_zero_or_one])) < 2:
        return False
    shown = ", ".join(f"{each:g}" for each in np.unique(values[strays])[:_SHOWN])
    findings.add(
        0, f"{strays.sum():,} rows have the label {shown}, not 0 or 1: they are bad rows", name
    )
    summary.sample.texts.setdefault(name, array.cast(pyarrow.string()))
    wrong = summary.sample.wrong.get(name, np.zeros(len(values), np.bool_))
    summary.sample.wrong[name] = wrong | strays
    summary.values[name] = pyarrow.array(values, mask=~is_zero_or_one)
    return True


def _meaning(array: Any) -> dict[str, float]:
    """Returns the numbers of texts such as yes and no, or of -1 and 1; empty if a value is unknown."""
    if types.is_integer(array.type) and set(array.drop_null().unique().to_pylist()) == {-1, 1}:
        return {"1": 1.0, "-1": 0.0}
    if not (types.is_string(array.type) or types.is_large_string(array.type)):
        return {}
    texts = pc.unique(array.drop_null())
    if not 1 < len(texts) <= len(_YES | _NO):
        return {}
    found = {text: text.strip().lower() for text in texts.to_pylist()}
    meaning = {text: 1.0 for text, word in found.items() if word in _YES}
    meaning |= {text: 0.0 for text, word in found.items() if word in _NO}
    return meaning if len(meaning) == len(found) and len(set(meaning.values())) == 2 else {}


def _by_values(summary: TableSummary, others: Collection[str], findings: Findings) -> str | None:
    """Returns the first column whose values may be labels, with a doubt."""
    names = [*_candidates(summary, others)]
    if not names or (len(names) == 1 and is_outcome(names[0])):
        return names[0] if names else None
    listed = ", ".join(names)
    reason = (
        f"no column has a usual name of labels, and the values of {listed} could be labels"
        if len(names) > 1
        else f"no column has a usual name of labels; the values of {listed} could be labels"
    )
    findings.doubts.append(Doubt(reason, "label", names[0], (*names, NO_LABEL)))
    return names[0]


def _candidates(summary: TableSummary, others: Collection[str]) -> Iterator[str]:
    """Yields columns with two values, then columns with few numbers, such as ratings."""
    binary = summary.binary_columns()
    names = [name for name in summary.values if name not in others]
    first = [name for name in names if name in binary or _meaning(summary.values[name])]
    yield from (name for name in first if not is_outcome(name))
    yield from (name for name in first if is_outcome(name))
    roles = {each.name: each.role for each in summary.columns}
    for name in names:
        array = summary.values[name]
        is_usual = name in first or roles[name] != "numeric" or split_column_name(name) & QUANTITIES
        if is_usual or not _is_number(array.type) or types.is_boolean(array.type):
            continue
        distinct = np.unique(_floats(array.drop_null()))
        is_scale = 2 < len(distinct) <= _MAX_RATINGS and distinct[0] >= 0 and distinct[-1] <= 10
        if is_scale and (distinct * 2 == np.round(distinct * 2)).all():
            yield name


def _floats(array: Any) -> Floats:
    if types.is_boolean(array.type):
        array = array.cast(pyarrow.int8())
    values = array.cast(pyarrow.float64(), safe=False).fill_null(np.nan)
    found: Floats = values.to_numpy(zero_copy_only=False)
    return found


def leave_out_outcomes(
    summary: TableSummary,
    columns: Sequence[ColumnSummary],
    label: ChosenLabel,
    given: Collection[str],
    findings: Findings,
) -> None:
    """Leaves out columns that are known only after a binary label, by their names and values.

    Args:
        summary: columns of the files.
        columns: the columns to check.
        label: the label.
        given: columns that the user named, which are kept.
        findings: receives remarks.
    """
    labels = _floats(summary.values[label.name])
    is_labeled = ~np.isnan(labels)
    for each in columns:
        array = summary.values.get(each.name)
        if array is None or each.role not in ("numeric", "categorical") or each.name in given:
            continue
        if not _is_number(array.type) or each.why.startswith("name of users"):
            continue
        values = np.nan_to_num(_floats(array))
        is_some = (values != 0) & is_labeled
        back = f"; numeric={each.name} uses it"
        if is_some.sum() >= _MIN_OUTCOMES and (labels[is_some] == 1).all():
            each.leave_out(
                "only with the label",
                f"left out, because it is non-zero only where {label.name} is 1{back}",
            )
        elif is_outcome(each.name):
            each.leave_out(
                "name of outcomes",
                f"left out, because its name is usual for what is known only after {label.name}{back}",
            )
        elif each.role == "numeric" and 0 < labels[is_labeled].mean() < 1:
            alone = auc(values[is_labeled], labels[is_labeled])
            if max(alone, 1 - alone) > _MOSTLY:
                findings.add(
                    0,
                    f"it alone has an AUC of {max(alone, 1 - alone):.3f}; skip={each.name} leaves it out "
                    f"if it is known only after {label.name}",
                    each.name,
                )
