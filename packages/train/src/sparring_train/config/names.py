"""Names of classes in a configuration: a short known name, or ``package.module:Class``."""

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
"""Name of user classes in error messages."""

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
    """Returns the last part of a name in lower case: ``torch.optim:Adagrad`` → ``adagrad``."""
    return re.split("[.:]", name)[-1].lower()


class NamedClass(Section):
    """A class and its arguments. All keys except `name` are passed to the class."""

    model_config = ConfigDict(extra="allow")

    name: ClassName = Field(description="Import path of the class: `package.module:Class`.")

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the class, by name."""
        return dict(self.model_extra or {})


def one_of(sections: Sequence[tuple[str, type[Section]]]) -> Any:
    """Returns the union of sections, discriminated by `kind`.

    Args:
        sections: kind and section of each; the kind `OWN` matches every class name.
    """
    tagged = tuple(Annotated[section, Tag(kind)] for kind, section in sections)
    return Annotated[Union[tagged], Discriminator(find_tag)]  # noqa: UP007 - of a tuple


def find_tag(value: Any) -> str | None:
    """Returns the kind of a section, `OWN` if it is a class name, None if it has no kind."""
    kind = kind_of(value)
    return OWN if kind is not None and ":" in kind else kind


def _name_alone(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


NamedClassOrName = Annotated[NamedClass, BeforeValidator(_name_alone)]
"""A class without arguments may be written as its name."""
