"""How a grandmaster's web interface is authenticated: no request is sent before that."""

from __future__ import annotations

import asyncio
import ssl

import pytest
from web_interface import (
    GOOD,
    Lab,
    ScriptedWebInterface,
    certificate,
    polled_error,
    server_context,
)

from timesyncd.errors import Refused, SourceError

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("nothing_left")]


async def test_a_certificate_that_changed(lab: Lab) -> None:
    """A pinned grandmaster with another certificate receives nothing; the error states which came and what to do."""
    other = certificate(lab.folder, "other")
    grandmaster = await lab.serve(ScriptedWebInterface(), other)
    reader = await lab.reader(grandmaster.port)

    actual = await polled_error(reader, Refused)

    assert f"its fingerprint is {other.fingerprint}; no request was sent" in actual
    assert "set fingerprint to it" in actual
    assert grandmaster.received == []


async def test_a_ca(lab: Lab) -> None:
    """A certificate that the given file signed is believed."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port, ca=lab.own.pem)

    assert (await reader.poll(0)).time_errors == GOOD


async def test_a_certificate_that_another_signed(lab: Lab) -> None:
    """A certificate that the given file did not sign is not believed, and its grandmaster receives nothing."""
    grandmaster = await lab.serve(ScriptedWebInterface())
    reader = await lab.reader(grandmaster.port, ca=certificate(lab.folder, "other").pem)

    actual = await polled_error(reader, Refused)

    assert "the certificate cannot be verified: " in actual
    assert grandmaster.received == []


async def test_insecure_reads(lab: Lab) -> None:
    """insecure = true takes any certificate."""
    grandmaster = await lab.serve(ScriptedWebInterface(), certificate(lab.folder, "other"))
    reader = await lab.reader(grandmaster.port, insecure=True)

    actual = await reader.poll(0)

    assert actual.time_errors == GOOD


def only_tls_1_1(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1_1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
@pytest.mark.parametrize("proof", ["fingerprint", "ca", "insecure"])
async def test_tls_1_2_at_least(lab: Lab, proof: str) -> None:
    """A grandmaster that speaks only TLS 1.1, which a client of that age can read, is refused whatever the proof."""
    versions = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        versions.append(writer.get_extra_info("ssl_object").version())
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=only_tls_1_1(server_context(lab.own)))
    given = {"fingerprint": lab.own.fingerprint, "ca": lab.own.pem, "insecure": True}[proof]
    async with server:
        port = server.sockets[0].getsockname()[1]
        of_that_age = only_tls_1_1(ssl.create_default_context(cafile=lab.own.pem))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=of_that_age)
        writer.close()
        actual = await polled_error(await lab.reader(port, **{proof: given}), SourceError)

    assert "TLS 1.2 or later" in actual
    assert versions == ["TLSv1.1"]
