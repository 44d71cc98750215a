"""How hard the property tests look: `make fuzz` takes the profile `fuzz`, everything else Hypothesis's own default."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fuzz", max_examples=5_000, deadline=None, derandomize=False)
