"""Chooses the label column for ``sparring init``: by name, by values, or by asking in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pyarrow
import pyarrow.compute as pc
import typer
from pyarrow import types

from sparring.errors import DataError
from sparring_train.cli.init_words import Words
from sparring_train.data.table.summary import TableSummary

__all__ = ["ChosenLabel", "choose_label"]

_YES = frozenset(("yes", "y", "true", "t", "on", "positive", "ja", "oui", "si", "sí"))
_NO = frozenset(("no", "n", "false", "f", "off", "negative", "nein", "non"))
_SHOWN = 4


@dataclass(slots=True)
class ChosenLabel:
    """The column of labels."""

    name: str
    is_binary: bool
    """Whether its values are 0 and 1."""
    values: dict[str, float] = field(default_factory=dict)
    """Text → number, for `data.label_values`."""


def choose_label(
    path: str, summary: TableSummary, words: Words, unsure: list[str], *, may_guess: bool
) -> ChosenLabel | None:
    """Returns the label, and replaces its texts in `summary` with numbers.

    Args:
        path: path of the files, for messages.
        summary: columns of the files.
        words: arguments of the command.
        unsure: receives remarks about uncertain guesses.
        may_guess: whether a column may be chosen only because of its values.

    Raises:
        DataError: the label consists neither of numbers nor of texts with a known meaning.
    """
    others = {each for names in words.columns.values() for each in names}
    if "label" in words.columns:
        name: str | None = words.columns["label"][0]
    else:
        name = summary.likely_label(others)
        if name is not None:
            unsure.append(f"{name}: assumed to be the label, because of its name")
        elif may_guess:
            name = _by_values(summary, others, unsure)
    if name is None:
        return None
    meaning = dict(words.data.label_values) if words.data is not None else {}
    array = summary.values[name]
    kind = array.type
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    meaning = meaning or (_meaning(summary, name) if not is_number else {})
    if not meaning and not is_number:
        found = summary.values[name].drop_null().unique().to_pylist()
        listed = ", ".join(map(repr, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
        shown = [str(each) for each in found[:2]] + ["yes", "no"][len(found[:2]) :]
        raise DataError(
            f"{path}: the label {name} is {kind} ({listed}), expected 0 and 1, booleans, or numbers; "
            f"specify a number for each value: 'label_values={{{shown[0]}: 1, {shown[1]}: 0}}'",
            path=path,
            column=name,
        )
    if meaning:
        texts = summary.sample.texts.get(name, array).cast(pyarrow.string())
        places = pc.index_in(texts, pyarrow.array(list(meaning)))
        summary.values[name] = pyarrow.array(list(meaning.values()), pyarrow.float64()).take(places)
        summary.sample.wrong.pop(name, None)
    return ChosenLabel(name, _is_binary(summary, name), meaning)


def _is_binary(summary: TableSummary, label: str) -> bool:
    values = summary.values[label].drop_null().unique()
    return set(values.cast(pyarrow.float64()).to_pylist()) <= {0.0, 1.0}


def _meaning(summary: TableSummary, name: str) -> dict[str, float]:
    """Returns the numbers of texts such as yes and no; empty if a text is unknown."""
    array = summary.values[name]
    if not (types.is_string(array.type) or types.is_large_string(array.type)):
        return {}
    texts = pc.unique(array.drop_null())
    if not 1 < len(texts) <= len(_YES | _NO):
        return {}
    found = {text: text.strip().lower() for text in texts.to_pylist()}
    meaning = {text: 1.0 for text, word in found.items() if word in _YES}
    meaning |= {text: 0.0 for text, word in found.items() if word in _NO}
    return meaning if len(meaning) == len(found) and len(set(meaning.values())) == 2 else {}


def _by_values(summary: TableSummary, others: Collection[str], unsure: list[str]) -> str | None:
    """Returns the only column with two values, or the column that the user chooses."""
    names = [
        name
        for name in summary.values
        if name not in others and (name in summary.binary_columns() or _meaning(summary, name))
    ]
    if not names:
        return None
    if sys.stdin.isatty() and sys.stderr.isatty():
        return _answer(names)
    listed = ", ".join(names)
    if len(names) > 1:
        unsure.append(
            f"{listed}: each has two values; give label=COLUMN if one of them is the label"
        )
        return None
    unsure.append(
        f"{listed}: assumed to be the label of a click model, because no other column has two values "
        f"such as 0 and 1; skip={listed} prevents it"
    )
    return names[0]


def _answer(names: Sequence[str]) -> str | None:
    if len(names) == 1:
        question = f"Is {names[0]} the label, which the model predicts?"
        return names[0] if typer.confirm(question, default=True, err=True) else None
    while True:
        question = f"Which column is the label: {', '.join(names)}, or none?"
        answer = str(typer.prompt(question, default="none", err=True)).strip()
        if answer == "none":
            return None
        if answer in names:
            return answer
        typer.echo(f"{answer!r} is not one of them", err=True)
