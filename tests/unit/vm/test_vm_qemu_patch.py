"""The correction of QEMU changes the octets that it knows, and nothing in a program that it does not know."""

from __future__ import annotations

import struct

import pytest
from vm_qemu_patch import RELOCATION, SECTION_HEADER, UnknownCode, patched

INCREMENT = b"\x48\x29\xc3\x48\xc1\xeb\x04\x49\x01\x1c\x24\x5b"
RXSATRH = b"\x83\xa7\x20\xb6\x00\x00\xfe\x8b\x87\x30\xb6\x00\x00"
COMPARE = b"\x0f\xb6\x84\x24\x10\x01\x00\x00\x41\x38\x86\x51\x5f\x00\x00\x0f\x85"
TEXT_ADDRESS, TABLE_ADDRESS = 0x400000, 0x900000


def program(increment: bytes = INCREMENT, rxsatrh: bytes = RXSATRH, compare: bytes = COMPARE) -> bytes:
    """An ELF file with the known code: a text section, and a table of functions that its relocations fill."""
    text = b"\xcc" * 8 + increment + b"\xcc" * 4 + rxsatrh + b"\xcc" * 3 + rxsatrh + b"\xcc" * 5 + compare
    functions = [text.find(rxsatrh), text.rfind(rxsatrh)]
    entries = []
    for index, function in enumerate(functions):
        where = TABLE_ADDRESS + 64 * index
        entries += [(where, TEXT_ADDRESS), (where + 16, TEXT_ADDRESS + function)]
    relocations = b"".join(RELOCATION.pack(where, 8, target) for where, target in entries)
    names = b"\0.text\0.rela.dyn\0.shstrtab\0"
    text_at, relocations_at = 64, 64 + len(text)
    names_at = relocations_at + len(relocations)
    table_at = names_at + len(names)
    headers = [
        (0, 0, 0, 0, 0),
        (1, 1, TEXT_ADDRESS, text_at, len(text)),
        (7, 4, 0, relocations_at, len(relocations)),
        (17, 3, 0, names_at, len(names)),
    ]
    table = b"".join(
        SECTION_HEADER.pack(name, kind, 0, address, offset, size, 0, 0, 0, 0)
        for name, kind, address, offset, size in headers
    )
    start = bytearray(64)
    struct.pack_into("<Q", start, 40, table_at)
    struct.pack_into("<HHH", start, 58, SECTION_HEADER.size, len(headers), 3)
    return bytes(start) + text + relocations + names + table


def test_the_three_faults_are_corrected() -> None:
    """Exactly the known octets differ: the arithmetic, the register that frees a timestamp, and the types that are stamped."""
    before = program()

    after = patched(before)

    assert b"\x48\x29\xc3\x48\xc1\xfb\x04\x49\x29\x1c\x24\x5b" in after
    assert after.count(b"\x83\xa7\x20\xb6\x00\x00\xfe\x8b\x87\x28\xb6\x00\x00") == 2
    assert b"\xf6\x84\x24\x10\x01\x00\x00\x08" + b"\x90" * 7 + b"\x0f\x85" in after
    functions = [TEXT_ADDRESS + before.find(RXSATRH) - 64, TEXT_ADDRESS + before.rfind(RXSATRH) - 64]
    for index, function in enumerate(functions):
        assert RELOCATION.pack(TABLE_ADDRESS + 64 * index, 8, function) in after
    assert len(after) == len(before)


@pytest.mark.parametrize(
    "unknown",
    [
        program(increment=b"\x90" * 12),
        program(increment=INCREMENT * 2),
        program(rxsatrh=b"\x90" * 13),
        program(compare=b"\x90" * 17),
        b"#!/bin/sh\n",
        b"",
    ],
)
def test_unknown_code_is_refused(unknown: bytes) -> None:
    """A program in which a place is missing, or found more often than known, is left alone."""
    with pytest.raises(UnknownCode):
        patched(unknown)


def test_a_corrected_program_is_refused() -> None:
    """Correcting twice would spoil it."""
    with pytest.raises(UnknownCode):
        patched(patched(program()))
