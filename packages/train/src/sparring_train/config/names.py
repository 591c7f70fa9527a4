"""Names of code in a configuration: a short name that this project knows, or ``package.module:Class``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Union

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from sparring.adapter import kind_of
from sparring_train.config.section import Section

__all__ = [
    "CLASS_NAME",
    "OWN",
    "ClassName",
    "KnownOrClassName",
    "NamedClass",
    "NamedClassOrName",
    "one_of",
    "short_name",
    "find_tag",
]

OWN = "package.module:Class"
"""How messages name the kinds that are classes."""

CLASS_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
"""Pattern of ``package.module:Class``."""

_KNOWN = re.compile(r"[A-Za-z_]\w*")


def _check_class_name(name: str) -> str:
    if re.fullmatch(CLASS_NAME, name) is None:
        raise _error(name, "package.module:Class")
    return name


def _check_name(name: str) -> str:
    if _KNOWN.fullmatch(name) is None and re.fullmatch(CLASS_NAME, name) is None:
        raise _error(name, "a name without dots, or package.module:Class")
    return name


def _error(name: str, expected: str) -> PydanticCustomError:
    module, _, last = name.rpartition(".")
    if module and re.fullmatch(CLASS_NAME, f"{module}:{last}"):
        expected += f"; did you mean {module}:{last}?"
    return PydanticCustomError("class_name", "must be {expected}", {"expected": expected})


ClassName = Annotated[str, AfterValidator(_check_class_name)]
KnownOrClassName = Annotated[str, AfterValidator(_check_name)]


def short_name(name: str) -> str:
    """The last part of a name, in small letters: ``torch.optim:Adagrad`` → ``adagrad``."""
    return re.split("[.:]", name)[-1].lower()


class NamedClass(Section):
    """A class, and what it is called with: any other key goes to it as it stands."""

    model_config = ConfigDict(extra="allow")

    name: ClassName = Field(description="`package.module:Class`: where Python finds the class.")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the class, by name."""
        return dict(self.model_extra or {})


def one_of(sections: Sequence[tuple[str, type[Section]]]) -> Any:
    """The union of sections, told apart by `kind`.

    Args:
        sections: kind and section; the kind `OWN` stands for all names of classes.
    """
    tagged = tuple(Annotated[section, Tag(kind)] for kind, section in sections)
    return Annotated[Union[tagged], Discriminator(find_tag)]  # noqa: UP007 - of a tuple


def find_tag(value: Any) -> str | None:
    """The kind of a section, or `OWN` if it names a class; None if it has none."""
    kind = kind_of(value)
    return OWN if kind is not None and ":" in kind else kind


def _name_alone(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


NamedClassOrName = Annotated[NamedClass, BeforeValidator(_name_alone)]
"""A name alone stands for a mapping with no other key."""
