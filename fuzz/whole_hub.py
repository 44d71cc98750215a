"""A whole hub in one process: valid messages with extreme numbers, several of them in any order."""

from __future__ import annotations

import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from extreme_messages import BASES, EXTREMES, changed, leaves, receive
from pydantic import ValidationError

from timesyncd.messages.node import Message

_BASES = list(BASES.values())
_PAYLOADS = [json.loads(base.model_dump_json()) for base in _BASES]
_PATHS = [list(leaves(payload)) for payload in _PAYLOADS]

#: Which message, how many of its numbers change; and for each: which, and to what.
_MESSAGE = struct.Struct("<BB")
_CHANGE = struct.Struct("<HBd")
_MOST_MESSAGES, _MOST_CHANGES = 6, 4


def messages_of(data: bytes) -> Iterator[Message]:
    """The messages that the octets describe; those that their schema refuses are left out."""
    at = 0
    for _ in range(_MOST_MESSAGES):
        if len(data) < at + _MESSAGE.size:
            return
        number, changes = _MESSAGE.unpack_from(data, at)
        at += _MESSAGE.size
        index = number % len(_BASES)
        payload = _PAYLOADS[index]
        for _ in range(changes % (_MOST_CHANGES + 1)):
            if len(data) < at + _CHANGE.size:
                break
            path, choice, value = _CHANGE.unpack_from(data, at)
            at += _CHANGE.size
            new = EXTREMES[choice % len(EXTREMES)] if choice & 0x80 else _number(value)
            payload = changed(payload, _PATHS[index][path % len(_PATHS[index])], new)
        try:
            yield type(_BASES[index]).model_validate_json(json.dumps(payload))
        except ValidationError:
            continue


def run(data: bytes) -> object:
    receive(messages_of(data))
    return None


def seeds() -> Iterator[bytes]:
    for index in range(len(_BASES)):
        yield _MESSAGE.pack(index, 0)
        yield _MESSAGE.pack(index, 1) + _CHANGE.pack(0, 0x80, 0.0)


def _number(value: float) -> float:
    """JSON has no infinities; a whole number may be an integer's."""
    if not math.isfinite(value):
        return 0
    return int(value) if value.is_integer() and abs(value) < 2**63 else value
