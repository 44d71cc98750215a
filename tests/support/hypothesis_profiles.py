"""How hard the property tests look: `make properties` takes the profile `fuzz`. No test here is about time, so none has a deadline."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")
settings.register_profile("fuzz", max_examples=5_000, deadline=None, derandomize=False)
