"""Reads of an attribute are found where it is certain whose they are."""

from __future__ import annotations

from typing import Any

import pytest

from sparring.adapter import attribute_reads


class Layer:
    """Has a weight."""

    def __init__(self) -> None:
        self.weight = 1.0


class Model:
    """Layers in attributes, lists and dicts; each method reads in another way."""

    def __init__(self) -> None:
        self.a, self.b, self.c = Layer(), Layer(), Layer()
        self.layers, self.named = [self.b, self.c], {"b": self.b}
        self.inner: Any = None

    @property
    def words(self) -> Layer:
        return self.a

    @property
    def broken(self) -> Layer:
        raise RuntimeError("made later")

    def plain(self) -> Any:
        return self.a.weight

    def from_property(self) -> Any:
        return self.words.weight

    def index(self) -> Any:
        return self.layers[0].weight, self.named["b"].weight

    def name(self) -> Any:
        layer = self.a
        return layer.weight

    def several(self) -> Any:
        one, other = self.a, self.layers[1]
        again = one
        return again.weight, other.weight

    def annotated(self) -> Any:
        layer: Layer = self.a
        return layer.weight

    def walrus(self) -> Any:
        if (layer := self.a) is not None:
            return layer.weight
        return None

    def by_getattr(self) -> Any:
        return getattr(self, "a").weight  # noqa: B009 - so people write

    def closure(self) -> Any:
        layer = self.a
        return [layer.weight for _ in range(2)], lambda: layer.weight

    def loop(self) -> Any:
        found = 0.0
        for layer in self.layers:
            found += layer.weight
        return found

    def numbered(self) -> Any:
        found = 0.0
        for number, layer in enumerate(self.layers):
            found += number * layer.weight
        return found

    def items(self) -> Any:
        return [key + str(layer.weight) for key, layer in self.named.items()]

    def values(self) -> Any:
        layers = self.named
        return {layer.weight for layer in layers.values()}

    def called(self) -> Any:
        return self.plain()

    # -- not certain

    def argument(self, layer: Any = None) -> Any:
        return layer.weight if layer else None

    def optional_argument(self, layer: Any = None) -> Any:
        if layer is None:
            layer = self.a
        return layer.weight

    def last(self) -> Any:
        for layer in self.layers:
            layer.used = True  # type: ignore[attr-defined]
        return layer.weight

    def hidden(self) -> Any:
        layer = self.a
        return lambda layer: layer.weight, layer

    def assigned_twice(self) -> Any:
        layer = self.a
        layer = layer if self.inner is None else self.inner
        return layer.weight

    def chosen(self) -> Any:
        return [layer.weight for layer in self.layers if layer is not self.b]

    def chosen_in_loop(self) -> Any:
        found = 0.0
        for layer in self.layers:
            if layer is self.b:
                continue
            found += layer.weight
        return found

    def asked(self) -> Any:
        return self.a.weight if isinstance(self.a, float) else None

    def part(self) -> Any:
        return [layer.weight for layer in self.layers[1:]]

    def stream(self) -> Any:
        return [layer.weight for layer in self.inner]

    def failing(self) -> Any:
        return self.broken.weight, self.missing.weight  # type: ignore[attr-defined]

    def written(self) -> None:
        self.a.weight = 2.0


READS = {
    "plain": "a",
    "from_property": "a",
    "index": "bb",
    "name": "a",
    "several": "ac",
    "annotated": "a",
    "walrus": "a",
    "by_getattr": "a",
    "closure": "aa",
    "loop": "bc",
    "numbered": "bc",
    "items": "b",
    "values": "b",
    "called": "a",
    **dict.fromkeys(
        (
            "argument",
            "optional_argument",
            "last",
            "hidden",
            "assigned_twice",
            "chosen",
            "chosen_in_loop",
            "asked",
            "part",
            "stream",
            "failing",
            "written",
        ),
        "",
    ),
}


@pytest.mark.parametrize("method", list(READS))
def test_reads_are_found_where_they_are_certain(method: str) -> None:
    model = Model()
    model.inner = iter([model.a])
    found = [each for each, _ in attribute_reads(model, [method], ["weight"], "torch")]
    assert [id(each) for each in found] == [id(getattr(model, name)) for name in READS[method]]
    assert list(model.inner) == [model.a]


def test_the_place_is_that_in_the_file() -> None:
    line = Model.plain.__code__.co_firstlineno + 1
    (read,) = attribute_reads(Model(), ["called"], ["weight"], "torch")
    assert read[1] == f"Model.plain, line {line} of test_attribute_reads.py"


def test_methods_of_a_framework_are_not_read() -> None:
    own = Model.__module__.split(".", maxsplit=1)[0]
    assert list(attribute_reads(Model(), ["plain"], ["weight"], own)) == []
