"""The blocks of a recording of communicators: what is written is read, and anything else is one clear error."""

from __future__ import annotations

import pytest

from timesyncd.errors import Malformed
from timesyncd.ipc.group_marks import (
    GROUP_MAGIC,
    AnySource,
    Communicator,
    decode_communicator,
    encode_any_source,
    encode_communicator,
    is_communicator,
    pack_kind,
    split_kind,
)
from timesyncd.ipc.job_datagram import Kind


@pytest.mark.parametrize(
    "communicator",
    [
        Communicator("7", (1, 3), "tp"),
        Communicator("0", (0, 1, 2, 3)),
        Communicator("mesh group", (3, 1), "pp", tag=-1),
        Communicator("9", (2,), None, None),
    ],
)
def test_what_is_written_is_read(communicator: Communicator) -> None:
    """A communicator keeps its number, its ranks in the order of the group, its dimension and its tag."""
    block = encode_communicator(4095, communicator)

    assert is_communicator(block)
    assert decode_communicator(block) == (4095, communicator)


def test_a_rank_that_receives_from_any_is_written() -> None:
    """The block has the name of the group alone."""
    block = encode_any_source("pp 1")

    assert is_communicator(block)
    assert decode_communicator(block) == AnySource("pp 1")


def test_a_kind_carries_the_number_of_its_communicator() -> None:
    """Both are 32 bits together, for the largest number too."""
    packed = pack_kind((1 << 24) - 1, Kind.SEND)

    assert packed < 1 << 32
    assert split_kind(packed) == ((1 << 24) - 1, Kind.SEND)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"number": 0}',
        '{"number": 0, "name": "a", "ranks": [], "dimension": null, "tag": null}',
        '{"number": 0, "name": "a", "ranks": [1, 1], "dimension": null, "tag": null}',
        '{"number": 0, "name": "a", "ranks": [1, -1], "dimension": null, "tag": null}',
        '{"number": 0, "name": "a", "ranks": [1, 2, 3], "dimension": null, "tag": 0}',
        '{"number": 0, "name": "a", "ranks": "12", "dimension": null, "tag": null}',
        '{"number": true, "name": "a", "ranks": [1], "dimension": null, "tag": null}',
        '{"number": 0, "name": "a\\n", "ranks": [1], "dimension": null, "tag": null}',
        '{"number": 0, "name": "a", "ranks": [1], "dimension": 7, "tag": null}',
        '{"number": 0, "name": "a", "ranks": [1, 2], "dimension": null, "tag": 1e300}',
        '{"any_source": 3}',
        "[" * 100_000,
    ],
)
def test_anything_else_is_malformed(content: str) -> None:
    """A damaged file gives one typed error."""
    with pytest.raises(Malformed, match="communicator of"):
        decode_communicator(GROUP_MAGIC + content.encode())
