"""chronyd over its command protocol: docs/clock-sources.md."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from timesyncd.clocks import Clocks, SystemClocks, real_minus_boot_ns
from timesyncd.drivers._adjtimex import frequency_ppb
from timesyncd.drivers._chrony_protocol import Command, NoSuchSource, SourceCount, SourceData, SourceStats, Tracking
from timesyncd.drivers._chrony_sample import History, Picture, ntp_source
from timesyncd.drivers._chrony_socket import Conversation, parse_address, text, usual_address
from timesyncd.errors import SourceError, Unreachable
from timesyncd.sample import NtpSource, Reading

#: No more of chronyd's sources are asked for.
MOST_SOURCES = 32

_ANSWERS_WITHIN_S = 1.0


class ChronyOptions(BaseModel):
    """`address` unset: chronyd's UNIX socket where it can be used, else UDP."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = None
    poll_interval_s: Annotated[float, Field(ge=0.1, le=60)] = 1.0
    max_clock_error_ppb: Annotated[int, Field(ge=0, le=10**9)] = 1000

    @field_validator("address")
    @classmethod
    def _is_one(cls, address: str | None) -> str | None:
        if address is not None:
            parse_address(address)
        return address


class Chrony:
    """Reads one chronyd, and can change nothing in it."""

    Options: ClassVar[type[BaseModel]] = ChronyOptions
    timeout_s = 1.5

    def __init__(self, name: str, options: ChronyOptions, runtime_dir: Path, clocks: Clocks | None = None) -> None:
        self.poll_interval_s = options.poll_interval_s
        self._name = name
        self._configured = options.address
        self._clocks = clocks or SystemClocks()
        self._history = History(name, options.max_clock_error_ppb)
        self._conversation = Conversation()

    async def open(self) -> None:
        """Raises Unreachable."""
        self._address = parse_address(self._configured) if self._configured else usual_address()
        await self._conversation.open(self._address, self._name)

    async def poll(self) -> Sequence[Reading]:
        """Raises Unreachable, Malformed and Refused."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                return [self._history.take(await self._picture())]
        except TimeoutError:
            raise Unreachable(f"{text(self._address)}: no answer within {_ANSWERS_WITHIN_S:g} s") from None
        except SourceError as error:
            raise type(error)(f"{text(self._address)}: {error}") from error

    async def close(self) -> None:
        self._conversation.close()

    async def _picture(self) -> Picture:
        asked_ns, asked_real_minus_boot_ns = self._clocks.boottime_ns(), real_minus_boot_ns(self._clocks)
        kernel_ppb = frequency_ppb()
        tracking = await self._conversation.ask(Tracking, Command.TRACKING)
        return Picture(
            boottime_ns=asked_ns,
            real_minus_boot_ns=asked_real_minus_boot_ns,
            kernel_ppb=(kernel_ppb, frequency_ppb()),
            tracking=tracking,
            sources=await self._sources(),
            real_minus_boot_after_ns=real_minus_boot_ns(self._clocks),
        )

    async def _sources(self) -> tuple[NtpSource, ...]:
        """Those that are still there when their turn comes."""
        count = (await self._conversation.ask(SourceCount, Command.N_SOURCES)).sources
        found = []
        for index in range(min(count, MOST_SOURCES)):
            try:
                data = await self._conversation.ask(SourceData, Command.SOURCE_DATA, index)
                stats = await self._conversation.ask(SourceStats, Command.SOURCE_STATS, index)
            except NoSuchSource:
                break
            found.append(ntp_source(data, stats))
        return tuple(found)
