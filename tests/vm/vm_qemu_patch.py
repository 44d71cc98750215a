"""
Corrects QEMU's emulated igb network card, so that Linux can take PTP timestamps from it. Pure: octets in, octets out.

Debian's QEMU 10.0.2 and 11.1.3 emulate the card's clock and timestamps with three faults (hw/net/e1000x_common.c, hw/net/igb_core.c):

1. The clock jumps when its frequency is set. It is timadj + ns x increment / 16. When the increment changes, timadj must lose ns x change / 16,
   but it gains that; and the division is unsigned, so a smaller increment makes the clock jump by 2199 s.
2. Reading RXSATRH makes room for the next received timestamp. Linux does not read that register: on the card, reading RXSTMPH makes room.
   So only the first received packet gets a timestamp.
3. Only the one message type in TSYNCRXCFG gets a timestamp, though the driver requested all event messages. A grandmaster stamps no Delay_Req.

What stays: only messages over Ethernet (`ptp4l -2`) get timestamps, and only one at a time, as on the 82576.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple


class UnknownCode(Exception):
    """The program has other code than is known, so nothing was changed; the text names what was not found."""


class Section(NamedTuple):
    """A section of an ELF file (Elf64_Shdr)."""

    name: str
    kind: int
    address: int
    offset: int
    size: int


PROGRAM_BITS = 1
RELATIVE_RELOCATION = 8
RELOCATION = struct.Struct("<QQq")
SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")

#: sub %rax,%rbx; shr $4,%rbx; add %rbx,(%r12); pop %rbx
SET_INCREMENT = re.compile(rb"\x48\x29\xc3\x48\xc1\xeb\x04\x49\x01\x1c\x24\x5b", re.DOTALL)
#: andl $~1,TSYNCRXCTL(%rdi); mov RXSATRH(%rdi),%eax: one function of the e1000e, one of the igb.
READ_RXSATRH = re.compile(rb"\x83\xa7\x20\xb6\x00\x00\xfe\x8b\x87\x30\xb6\x00\x00", re.DOTALL)
#: movzbl type(%rsp),%eax; cmp %al,TSYNCRXCFG+1(%r14); jne
COMPARE_TYPE = re.compile(rb"\x0f\xb6\x84\x24(....)\x41\x38\x86\x51\x5f\x00\x00\x0f\x85", re.DOTALL)

#: RXSTMPH is two registers (of 8 octets in the table of functions) before RXSATRH.
RXSTMPH_BEFORE_RXSATRH = 16


def patched(program: bytes) -> bytes:
    """The program with the three faults corrected. Raises UnknownCode."""
    code = bytearray(program)
    sections = read_sections(program)
    _correct_increment(code)
    _make_rxstmph_free_the_stamp(code, sections)
    _stamp_all_event_messages(code)
    return bytes(code)


def read_sections(program: bytes) -> dict[str, Section]:
    """By name. Raises UnknownCode where this is no ELF file of 64 bits."""
    try:
        return _read_sections(program)
    except (struct.error, IndexError, ValueError) as error:
        raise UnknownCode(f"no sections of an ELF file: {error}") from error


def _read_sections(program: bytes) -> dict[str, Section]:
    (table,) = struct.unpack_from("<Q", program, 40)
    entry_size, count, names_index = struct.unpack_from("<HHH", program, 58)
    headers = [SECTION_HEADER.unpack_from(program, table + index * entry_size) for index in range(count)]
    names = headers[names_index][4]
    sections = {}
    for name, kind, _, address, offset, size, *_ in headers:
        start = names + name
        text = program[start : program.index(0, start)].decode()
        sections[text] = Section(text, kind, address, offset, size)
    return sections


def _places(code: bytearray, pattern: re.Pattern[bytes], count: int) -> list[re.Match[bytes]]:
    found = list(pattern.finditer(bytes(code)))
    if len(found) != count:
        raise UnknownCode(f"{len(found)} places of {pattern.pattern!r} where {count} are known")
    return found


def _correct_increment(code: bytearray) -> None:
    """Sar in place of shr, and sub in place of add."""
    (place,) = _places(code, SET_INCREMENT, 1)
    code[place.start() + 5] = 0xFB
    code[place.start() + 8] = 0x29


def _make_rxstmph_free_the_stamp(code: bytearray, sections: dict[str, Section]) -> None:
    """The function that frees the timestamp returns RXSTMPH, and the table of functions has it for that register."""
    entries = _relative_relocations(code, sections)
    for place in _places(code, READ_RXSATRH, 2):
        function = _address(sections, place.start())
        referring = [where for where, (_, target) in entries.items() if target == function]
        if len(referring) != 1 or referring[0] - RXSTMPH_BEFORE_RXSATRH not in entries:
            raise UnknownCode("the table of the registers' functions")
        code[place.start() + 9] = 0x28
        offset, _ = entries[referring[0] - RXSTMPH_BEFORE_RXSATRH]
        struct.pack_into("<q", code, offset + 16, function)


def _stamp_all_event_messages(code: bytearray) -> None:
    """testb $8,type(%rsp); nop: event messages have types below 8 (IEEE 1588-2019, table 36)."""
    (place,) = _places(code, COMPARE_TYPE, 1)
    code[place.start() : place.start() + 15] = b"\xf6\x84\x24" + place[1] + b"\x08" + b"\x90" * 7


def _relative_relocations(code: bytearray, sections: dict[str, Section]) -> dict[int, tuple[int, int]]:
    """By the address that is relocated: the offset of the entry in the file, and the address that it becomes."""
    if ".rela.dyn" not in sections:
        raise UnknownCode("no section .rela.dyn")
    section = sections[".rela.dyn"]
    entries = {}
    for offset in range(section.offset, section.offset + section.size, RELOCATION.size):
        where, info, target = RELOCATION.unpack_from(code, offset)
        if info & 0xFFFFFFFF == RELATIVE_RELOCATION:
            entries[where] = (offset, target)
    return entries


def _address(sections: dict[str, Section], offset: int) -> int:
    for section in sections.values():
        if section.kind == PROGRAM_BITS and section.offset <= offset < section.offset + section.size:
            return section.address + offset - section.offset
    raise UnknownCode(f"offset {offset} lies in no section")
