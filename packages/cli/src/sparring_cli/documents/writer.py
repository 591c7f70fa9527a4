"""Writes plain values as YAML that reads back the same."""

from __future__ import annotations

import io
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

__all__ = ["as_yaml"]


class _Representer(SafeRepresenter):
    """Writes text so that it reads back the same."""

    def represent_text(self, text: str) -> ScalarNode:
        # YAML readers treat these as line breaks unless they are escaped in double quotes.
        has_break = any(character in text for character in "\n\r\x85\u2028\u2029")
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style='"' if has_break else None
        )


_Representer.add_representer(str, _Representer.represent_text)


def as_yaml(value: Any) -> str:
    """Returns plain Python values as YAML in block style; keys keep their order."""
    writer = YAML(typ="safe", pure=True)
    writer.Representer = _Representer
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.allow_unicode = True
    writer.width = 100
    stream = io.StringIO()
    writer.dump(value, stream)
    return stream.getvalue()
