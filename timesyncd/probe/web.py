"""A grandmaster's web interface, looked at: its certificate before a log-in, then what its channels report, or every answer."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from timesyncd.clocks import SystemClocks
from timesyncd.drivers.timeprovider._web import MAX_FILE_BYTES, missing, monitored, reading
from timesyncd.drivers.timeprovider._web_codec import ChannelState, parse_channels, parse_chart, parse_history
from timesyncd.drivers.timeprovider._web_requests import (
    CHANNELS,
    METRICS,
    AllowedRequest,
    channel_states,
    chart,
    history,
)
from timesyncd.drivers.timeprovider._web_session import WebSession
from timesyncd.errors import Refused, SourceError, Unreachable
from timesyncd.probe.access import ProbeAccess, Progress, WebAccess
from timesyncd.sample import TimeError

T = TypeVar("T")

#: One day's file of a slow grandmaster.
FILE_S = 60.0


@dataclass(frozen=True, slots=True)
class WebReport:
    """`channels` None: without a log-in."""

    fingerprint: str
    channels: tuple[ChannelState, ...] | None = None
    time_errors: tuple[TimeError, ...] = ()
    utc_offset_s: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WebBodies:
    """Answers by the name that the simulator plays them by, and of the others why there is none."""

    answers: dict[str, bytes]
    missing: dict[str, str]


async def fingerprint(access: ProbeAccess) -> str:
    """The SHA-256 of the certificate that is shown at the HTTPS port: a handshake, and not an octet more. Raises SourceError."""
    device = f"{access.host}:{access.https_port}: https"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(2 * access.timeout_s):
            _, writer = await asyncio.open_connection(access.host, access.https_port, ssl=context)
    except TimeoutError as error:
        raise Unreachable(f"{device}: no answer within {2 * access.timeout_s:g} s") from error
    except ssl.SSLError as error:
        raise Refused(
            f"{device}: the TLS handshake failed: {error.reason or 'the peer closed the connection'}; TLS 1.2 or later is required"
        ) from error
    except (OSError, UnicodeError) as error:
        # asyncio puts its own sentence, with the address again, in place of the system's.
        number = getattr(error, "errno", None)
        raise Unreachable(f"{device}: {os.strerror(number) if number and number > 0 else error}") from error
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    return hashlib.sha256(certificate).hexdigest()


@asynccontextmanager
async def logged_in(access: ProbeAccess, web: WebAccess) -> AsyncIterator[WebSession]:
    """Logs in with the first request that needs it. Raises SourceError."""
    session = WebSession(access.host, web.options, web.password)
    session.open()
    session.begin(SystemClocks().boottime_ns())
    try:
        yield session
    finally:
        await session.close()


async def look(access: ProbeAccess, shown: str) -> WebReport:
    """`shown`: the certificate's fingerprint. Raises SourceError."""
    if access.web is None:
        return WebReport(shown)
    async with logged_in(access, access.web) as session:
        within_s = access.web.options.timeout_s
        states = await _within(within_s, session, channel_states(), parse_channels)
        measured = monitored(states, None)
        charts = {
            (channel, metric): await _within(within_s, session, chart(channel, metric), parse_chart)
            for channel, metric in product(measured, METRICS)
        }
    now = reading(charts, (), missing(measured, None))
    return WebReport(shown, states, now.time_errors, now.utc_offset_s, now.notes)


async def bodies(access: ProbeAccess, web: WebAccess, progress: Progress) -> WebBodies:
    """Every read there is. Raises SourceError where the grandmaster does not let anybody in."""
    found = WebBodies({}, {})
    async with logged_in(access, web) as session:
        within_s = web.options.timeout_s
        first = await _within(within_s, session, channel_states(), _kept(parse_channels))
        found.answers["channels_thresholdValue"] = first
        for name, request, parse in _reads():
            progress(f"{session.device}: {request.label}")
            try:
                wait_s = FILE_S if parse is parse_history else within_s
                found.answers[name] = await _within(wait_s, session, request, _kept(parse))
            except SourceError as error:
                if (
                    isinstance(error, Unreachable) and parse is parse_chart
                ):  # a file may take too long, a chart does not
                    raise
                found.missing[name] = str(error).removeprefix(f"{session.device}: {request.label}: ")
    return found


def _reads() -> list[tuple[str, AllowedRequest, Callable[[bytes], object]]]:
    reads: list[tuple[str, AllowedRequest, Callable[[bytes], object]]] = []
    for channel, metric in product(CHANNELS, METRICS):
        (word, number), short = channel.lower().split("-"), metric.replace("_", "-")
        reads.append((f"get_chart_data.{channel.lower()}.{short}", chart(channel, metric), parse_chart))
        reads.append((f"perfmon_{word}_stat.{number}.{short}", history(channel, metric), parse_history))
    return reads


def _kept(parse: Callable[[bytes], object]) -> Callable[[bytes], bytes]:
    """The body itself, if it is one that `parse` takes."""

    def checked(body: bytes) -> bytes:
        parse(body)
        return body

    return checked


async def _within(seconds: float, session: WebSession, request: AllowedRequest, parse: Callable[[bytes], T]) -> T:
    """Raises SourceError."""
    is_file = request.path.startswith("/perfmon_")
    try:
        async with asyncio.timeout(seconds):
            if is_file:
                return await session.read(request, parse, MAX_FILE_BYTES)
            return await session.fetch(request, parse)
    except TimeoutError as error:
        raise Unreachable(f"{session.device}: {request.label}: no complete answer within {seconds:g} s") from error
