"""
The drivers `phc` and `phc2sys`: a PTP hardware clock compared with the system clock through /dev/ptpN. See docs/clock-sources.md.

`phc2sys` also looks for a running phc2sys; that program reports nothing itself, so its effect is measured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, Field, model_validator

from timesyncd.clocks import NS_PER_S, Clocks, SystemClocks
from timesyncd.config import Section
from timesyncd.drivers.kernel._disciplines import ProcessScanner, may_steer_between
from timesyncd.drivers.kernel._machine import Machine
from timesyncd.drivers.kernel._programs import Process
from timesyncd.drivers.phc._device import PhcDevice, phc_index
from timesyncd.drivers.phc._ioctl import MAX_READINGS
from timesyncd.errors import SourceError, Unreachable
from timesyncd.sample import Reading

#: The lookup takes the kernel's lock for all interfaces, so it is rare.
RESOLVE_EVERY_NS = 10 * NS_PER_S


class PhcOptions(Section):
    """Exactly one of `interface` and `index` names the clock."""

    interface: Annotated[str, Field(min_length=1, max_length=15)] | None = None
    index: Annotated[int, Field(ge=0)] | None = None
    poll_interval_s: Annotated[float, Field(ge=0.2, le=60)] = 1.0
    readings: Annotated[int, Field(ge=1, le=MAX_READINGS)] = 5

    @model_validator(mode="after")
    def _names_one_clock(self) -> Self:
        if (self.interface is None) == (self.index is None):
            raise ValueError("exactly one of interface and index must be given")
        return self


class Phc:
    """Compares one PHC with CLOCK_REALTIME; changes neither."""

    Options: ClassVar[type[BaseModel]] = PhcOptions
    timeout_s = 5.0

    def __init__(
        self,
        name: str,
        options: PhcOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._name = name
        self._options = options
        self._clocks = clocks or SystemClocks()
        self._machine = machine or Machine()
        self._device: PhcDevice | None = None

    async def open(self) -> None:
        """Raises Unreachable, Refused and Malformed."""
        self._index = await self._present_index()
        self._device = PhcDevice(self._index, self._machine)

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Refused and Malformed."""
        if self._clocks.boottime_ns() - self._resolved_ns >= RESOLVE_EVERY_NS:
            index = await self._present_index()
            if index != self._index:  # another slave of the bond became the active one
                change = f"its clock changed from phc:{self._index} to phc:{index}"
                raise Unreachable(f"{self._options.interface}: {change}")
        steered = await self._is_steered()
        if self._device is None:
            raise Unreachable("not open")
        return [self._device.compare(self._name, self._clocks, self._options.readings, steered)]

    async def close(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            device.close()

    async def _is_steered(self) -> bool | None:
        """Whether a phc2sys may be steering one of the two clocks by the other; None: not looked for."""
        return None

    async def _present_index(self) -> int:
        """Raises Unreachable, Refused and Malformed."""
        self._resolved_ns = self._clocks.boottime_ns()
        if self._options.index is not None:
            return self._options.index
        return await asyncio.to_thread(phc_index, self._options.interface or "", self._machine)


class Phc2sys(Phc):
    """Compares the two clocks, and looks for a phc2sys that may be steering one of them by the other."""

    def __init__(
        self,
        name: str,
        options: PhcOptions,
        runtime_dir: Path,
        clocks: Clocks | None = None,
        machine: Machine | None = None,
    ) -> None:
        super().__init__(name, options, runtime_dir, clocks, machine)
        self._scanner = ProcessScanner(self._machine.proc, frozenset({"phc2sys"}))
        self._evaluated: tuple[tuple[Process, ...], int] | None = None
        self._evaluated_ns = 0
        self._steered = False

    async def _is_steered(self) -> bool | None:
        now_ns = self._clocks.boottime_ns()
        processes = await self._scanner.processes(now_ns)
        if processes is None:
            return None
        if self._evaluated != (processes, self._index) or now_ns - self._evaluated_ns >= RESOLVE_EVERY_NS:
            self._steered = await asyncio.to_thread(self._steers, processes, self._index)
            self._evaluated, self._evaluated_ns = (processes, self._index), now_ns
        return self._steered

    def _steers(self, processes: tuple[Process, ...], index: int) -> bool:
        return any(may_steer_between(process, index, self._index_of) for process in processes)

    def _index_of(self, interface: str) -> int | None:
        try:
            return phc_index(interface, self._machine)
        except SourceError:
            return None
