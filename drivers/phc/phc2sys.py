"""What linuxptp's phc2sys achieves, measured, since it tells nothing of itself: docs/clock-sources.md."""

from __future__ import annotations

import asyncio
from pathlib import Path

from timesyncd.clocks import Clocks
from timesyncd.drivers.kernel._disciplines import may_steer_between
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.kernel._processes import Lookout, Process
from timesyncd.drivers.phc._phc_interface import phc_index
from timesyncd.drivers.phc.phc import RESOLVE_EVERY_NS, Phc, PhcOptions
from timesyncd.errors import SourceError


class Phc2sys(Phc):
    """Compares the two clocks, and looks for a phc2sys that could be steering one of them by the other."""

    def __init__(
        self,
        name: str,
        options: PhcOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(name, options, runtime_dir, clocks, machine)
        self._lookout = Lookout(self._machine.proc, frozenset({"phc2sys"}))
        self._judged: tuple[tuple[Process, ...], int] | None = None
        self._judged_ns = 0
        self._steered = False

    async def _is_steered(self) -> bool | None:
        now_ns = self._clocks.boottime_ns()
        processes = await self._lookout.seen(now_ns)
        if processes is None:
            return None
        if self._judged != (processes, self._index) or now_ns - self._judged_ns >= RESOLVE_EVERY_NS:
            self._steered = await asyncio.to_thread(self._steers, processes, self._index)
            self._judged, self._judged_ns = (processes, self._index), now_ns
        return self._steered

    def _steers(self, processes: tuple[Process, ...], index: int) -> bool:
        return any(may_steer_between(process, index, self._index_of) for process in processes)

    def _index_of(self, interface: str) -> int | None:
        try:
            return phc_index(interface, self._machine)
        except SourceError:
            return None
