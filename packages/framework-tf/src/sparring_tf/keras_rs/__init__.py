"""Parts of programs of keras-rs besides the layers of this package."""

from __future__ import annotations
