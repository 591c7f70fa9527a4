"""What all tests of this checkout share."""

from __future__ import annotations

import hypothesis

# A machine with other work halts for longer than hypothesis allows an example by default.
hypothesis.settings.register_profile(
    "busy",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")
