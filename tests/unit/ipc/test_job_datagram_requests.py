"""The request for another policy, as it crosses the job link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timesyncd.errors import Malformed
from timesyncd.ipc.job_datagram import decode_request, encode_request, is_request


def test_a_request_is_laid_out_as_published() -> None:
    """As schemas/joblink.md draws it; reading it gives back what was asked."""
    data = encode_request("5453564c07c7c171", "bsp + fp16")

    assert data == b"TSJP" + bytes((1, 10, 0, 0)) + bytes.fromhex("5453564c07c7c171") + b"bsp + fp16"
    assert is_request(data) and not is_request(b"TSJL" + data[4:])
    assert decode_request(data) == ("5453564c07c7c171", "bsp + fp16")


@pytest.mark.parametrize(
    ("offset", "octets"),
    [(0, b"TSJL"), (4, b"\x02"), (5, b"\x09"), (6, b"\x01"), (16, b"\n"), (16, b"\xff"), (26, b"x"), (26, b"x" * 90)],
    ids=["magic", "version", "length", "padding", "unprintable", "no ASCII", "longer than declared", "too long"],
)
def test_a_request_with_a_wrong_octet_is_malformed(offset: int, octets: bytes) -> None:
    """It is looked at whole before anybody believes it."""
    data = bytearray(encode_request("5453564c07c7c171", "bsp + fp16"))
    data[offset : offset + len(octets)] = octets

    with pytest.raises(Malformed):
        decode_request(bytes(data))


@pytest.mark.parametrize(("job", "policy"), [("5453", "bsp"), ("x" * 16, "bsp"), ("0" * 16, ""), ("0" * 16, "x" * 97)])
def test_a_request_that_cannot_be_made(job: str, policy: str) -> None:
    """No id, or a text that a plan has no room for."""
    with pytest.raises(ValueError):
        encode_request(job, policy)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_a_request_or_malformed(noise: bytes, begin_well: bool) -> None:
    """Nothing else is ever raised for what anybody may send."""
    try:
        decode_request((b"TSJP\x01\x03" if begin_well else b"") + noise)
    except Malformed:
        pass
