"""What programs of keras-rs need besides the layers of this package."""

from __future__ import annotations
