"""Support for programs written for keras-rs, in addition to the layers of this package."""

from __future__ import annotations
