"""The code blocks of docs/operations.md, which the tests run word for word, and the list of those that they do not run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PATH = Path(__file__).parents[2] / "docs" / "operations.md"

#: Blocks that run in a virtual machine, by a name and the beginning of their text.
RUN = {
    "install": "umask 022",
    "install for Debian": "install -D -m 644 systemd/ptp4l@.service.d/timesyncd.conf",
    "apply": "systemd-sysusers && systemd-tmpfiles --create timesyncd.conf && sysctl --system\nudevadm",
    "enable ptp4l": "systemctl enable ptp4l@eth0",
    "start": "install -d -m 755 /etc/timesyncd",
    "configuration": "[web]",
    "explain": "$ timesyncd explain",
    "reason": "journalctl -t timesyncd -n 1",
    "addresses": "[Service]\nIPAddressDeny=any",
    "socket of ptp4l": "ls -l /run/ptp/ptp4l",
    "upgrade": "systemd-sysusers && systemd-tmpfiles --create timesyncd.conf && sysctl --system\nsystemctl",
    "remove": "systemctl disable --now timesyncd-traps.socket",
    "remove data": "rm -rf /etc/timesyncd /var/lib/timesyncd",
    "receive traps": "install -D -m 644 systemd/timesyncd-traps.socket",
}

#: Blocks that do not run there, by the beginning of their text, with the reason.
NOT_RUN = {
    "make dist && ls dist": "tests/dist installs, upgrades, removes and purges the packages",
    "pip --python /opt/timesyncd": "the virtual machine has no network",
    "install -D -m 644 systemd/ptp4l.service.d/timesyncd.conf": "Fedora's units are not those of Debian",
}


@dataclass(frozen=True, slots=True)
class Block:
    """`heading`: the nearest one above. `language`: the word behind the fence; empty for commands."""

    heading: str
    language: str
    text: str

    @property
    def commands(self) -> str:
        """What a reader types: of a block with prompts the lines behind them, else all of it."""
        typed = [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]
        return "\n".join(typed) if typed else self.text


def parse(markdown: str) -> list[Block]:
    """The fenced blocks, in their order."""
    found, heading, fence = [], "", None
    lines: list[str] = []
    for line in markdown.splitlines():
        if line.startswith("```"):
            if fence is None:
                fence, lines = line[3:].strip(), []
            else:
                found.append(Block(heading, fence, "\n".join(lines) + "\n"))
                fence = None
        elif fence is not None:
            lines.append(line)
        elif match := re.match(r"#+ (.*)", line):
            heading = match[1]
    return found


def blocks() -> dict[str, Block]:
    """Those of RUN, by name. Raises KeyError for a name whose block the manual does not have."""
    all_blocks = parse(PATH.read_text())
    found = {name: [block for block in all_blocks if block.text.startswith(begin)] for name, begin in RUN.items()}
    if wrong := {name: len(matching) for name, matching in found.items() if len(matching) != 1}:
        raise KeyError(f"not exactly one block each: {wrong}")
    return {name: matching[0] for name, matching in found.items()}


def unlisted() -> list[str]:
    """The first lines of the blocks that are in neither list."""
    known = (*RUN.values(), *NOT_RUN)
    return [block.text.splitlines()[0] for block in parse(PATH.read_text()) if not block.text.startswith(known)]
