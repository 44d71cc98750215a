"""The blocks of a page of docs/, run word for word in one shell, and what they print compared with what the page shows."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from operations_manual import Block, parse

DOCS = Path(__file__).parents[2] / "docs"

#: Ends what the page started and left running.
_END = "kill $(jobs -p) 2> /dev/null; wait\n"

#: A measured number. That of a rank, a bucket or a node is a name.
_NUMBER = re.compile(
    r"(?<![A-Za-z])(?<![a-z]-)(?<![Rr]ank )(?<!bucket )\d[\d.,:]*(?: (?:ns|us|ms|s|min|h|days|MB|GB|%))?"
)


@dataclass(frozen=True)
class Step:
    """One command, or a file to write (`file`, whose content is `text`). `shown`: the lines that the page shows behind it."""

    text: str
    file: str | None = None
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ran:
    step: Step
    printed: tuple[str, ...]

    def is_as_shown(self) -> bool:
        """
        What was printed is what the page shows: word for word, but each number may be another one, a line `...` is any lines, and
        a line that ends with "…" may go on otherwise. A step without shown lines may print what it likes.
        """
        printed = "".join(plain(line) + "\n" for line in self.printed)
        return not self.step.shown or re.fullmatch("".join(map(_pattern, self.step.shown)), printed) is not None


def _pattern(line: str) -> str:
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    begin = plain(line)
    return re.escape(begin.removesuffix("…")) + (r".*\n" if begin.endswith("…") else r"\n")


def plain(line: str) -> str:
    """The line without what differs from run to run: numbers with their units, and the width of columns."""
    return " ".join(_NUMBER.sub("N", line).split())


def steps(page: str, not_run: Mapping[str, str]) -> list[Step]:
    """Those of a page below docs/, without the blocks that begin with a key of `not_run`. Raises KeyError: no block begins so."""
    blocks = parse((DOCS / page).read_text())
    if unused := [begin for begin in not_run if not any(block.text.startswith(begin) for block in blocks)]:
        raise KeyError(f"{page}: no block begins with {unused}")
    kept = [block for block in blocks if not block.text.startswith(tuple(not_run))]
    return [step for block in kept for step in _steps_of(block)]


def _steps_of(block: Block) -> Iterator[Step]:
    if title := re.search(r'title="(.+?)"', block.language):
        yield Step(block.text, file=title[1])
    elif block.language.startswith("console"):
        for command, *shown in _split_at_prompts(block.text):
            yield Step(command, shown=tuple(shown))
    elif block.language.startswith("sh"):
        yield Step(block.text)


def _split_at_prompts(text: str) -> list[list[str]]:
    found: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append([line[2:]])
        else:
            found[-1].append(line)
    return found


def run(every: list[Step], folder: Path, replaced: Mapping[str, str], timeout_s: float = 240) -> list[Ran]:
    """
    Runs all steps in `folder`, in one bash. `replaced`: what stands for a part of the page's text, as a free port for the
    usual one. What the steps leave running is ended. Raises subprocess.TimeoutExpired.
    """
    script = "exec < /dev/null\n"
    for at, step in enumerate(every):
        text = step.text
        for old, new in replaced.items():
            text = text.replace(old, new)
        if step.file is not None:
            (folder / f"{at}.file").write_text(text)
            text = f"cp {at}.file {step.file}"
        script += f"{{\n{text}\n}} > {at}.out 2>&1\n"
    (folder / "page.sh").write_text(script + _END)
    shell = subprocess.Popen(["bash", "page.sh"], cwd=folder, start_new_session=True)
    try:
        shell.wait(timeout_s)
    finally:
        _end_group(shell.pid)
        shell.wait()
    return [Ran(step, tuple((folder / f"{at}.out").read_text().splitlines())) for at, step in enumerate(every)]


def _end_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
