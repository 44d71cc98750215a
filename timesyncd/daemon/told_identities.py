"""The clock identities that one grandmaster may announce. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from timesyncd.sample import GrandmasterSample


class ToldIdentities:
    """
    Those of a unit: as configured, and as it told them last. One that is not told any more, since only a part of the unit
    answers, is its own still: what is known of the unit must go on to count for those who follow it.
    """

    def __init__(self, configured: Sequence[str]) -> None:
        self._configured = configured
        self._own: str | None = None
        self._ports: list[str] = []

    def note(self, sample: GrandmasterSample) -> None:
        self._own = sample.clock_identity or self._own
        if sample.ports is not None:
            self._ports = [port.clock_identity for port in sample.ports if port.clock_identity is not None]

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys([*self._configured, *([self._own] if self._own else []), *self._ports]))
