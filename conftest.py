"""Settings for all tests of this checkout."""

from __future__ import annotations

import hypothesis

# On a busy machine an example takes longer than hypothesis allows by default.
hypothesis.settings.register_profile(
    "busy",
    parent=hypothesis.settings.default,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")
