"""The page on collectives lists the options of this package's collective."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from sparring_torch.distributed.options import TorchCollectiveOptions, TorchRendezvousOptions

REFERENCE = (Path(__file__).parents[3] / "docs/reference/collectives.md").read_text()


@pytest.mark.parametrize("options", [TorchCollectiveOptions, TorchRendezvousOptions])
def test_reference_has_every_option_with_its_default(options: type[BaseModel]) -> None:
    for name, field in options.model_fields.items():
        assert re.search(rf"^\| `{name}` \|.*`{field.default}`", REFERENCE, re.M), name
