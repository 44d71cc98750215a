"""
The rules of style for README.md and docs/, checked by `make check`: our own, and those of proselint.

    python docs/tools/prose.py [FILE ...]

It prints one line for each sentence that breaks a rule, with file, line, rule and sentence, and the share of long sentences.
Exit status 1: a sentence breaks a rule, or more than 5 % of the sentences are long. CONTRIBUTING.md, "Text", has the rules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

PROJECT = Path(__file__).resolve().parents[2]

#: Words of a sentence: more are long, which at most `LONG_SHARE` of all sentences may be; more than MAX_WORDS none may have.
#: A text of fewer than MIN_WORDS is no sentence but a name or a number in a table.
MIN_WORDS = 4
LONG_WORDS = 25
MAX_WORDS = 35
LONG_SHARE = 0.05

#: First words that begin an inverted sentence. "Where it is missing, the bound is unknown" becomes "If it is missing, ...".
INVERTED = ("Of", "Where", "Who", "Whoever")

#: Words that this project once used for what has a standard name, and what to write instead.
PRIVATE = {
    "heard": "received, or reporting",
    "hearing": "receiving",
    "hears": "receives",
    "kin": "similar models",
    "lopsided": "asymmetric",
    "nobody": "no process, no operator: name it",
    "stranger": "an unknown sender",
    "strangers": "unknown senders",
    "tells": "reports, or publishes",
    "told": "published, or reported",
    "whoever": "name the actor",
}

#: Checks of proselint that do not fit technical text: "For every" is no archaism, 4100's no decade, "..." in code no ellipsis.
NOT_CHECKED = ("archaism", "dates_times.dates.decade_apostrophes", "typography")

#: What ends in a dot within a sentence.
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|cf|al|approx|Sec|No))\.$")

#: Names that begin with a small letter, and may begin a sentence.
_SMALL_NAMES = "chronyd|fp16|gloo|mypy|phc2sys|ptp4l|pysnmp|timesyncd|torch"
_SENTENCE_END = re.compile(rf"[.!?][\"')\]*_]*\s+(?=[\"'(\[*_]*(?:[A-Z0-9\x00]|(?:{_SMALL_NAMES})\b)|[*_]+\w)")
_FENCE = re.compile(r"\s*(?:>\s*)?(```+|~~~+)")
_TABLE_RULE = re.compile(r"\|[\s:|-]+\|?$")
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])\s+")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\](?:\([^)]*\)|\[[^\]]*\])")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Sentence:
    """`text` is as in the file, on one line. `words` are those that count: inline code is one word, a sign alone is none."""

    path: str
    line: int
    text: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offence:
    rule: str
    sentence: Sentence

    def __str__(self) -> str:
        return f"{self.sentence.path}:{self.sentence.line}: {self.rule}: {self.sentence.text}"


def sentences(path: str, markdown: str) -> list[Sentence]:
    """Those of paragraphs, list items, quotations and cells of tables; not of headings, code and comments."""
    return [sentence for line, text in _blocks(markdown) for sentence in _split(path, line, text)]


def offences(found: Iterable[Sentence]) -> list[Offence]:
    """Each rule that a sentence breaks, but that on the share of long ones."""
    return [Offence(rule, sentence) for sentence in found for rule in _broken(sentence)]


def long_share(found: Sequence[Sentence]) -> float:
    """The share of sentences with more than `LONG_WORDS` words, among those with `MIN_WORDS` at least."""
    lengths = [len(sentence.words) for sentence in found if len(sentence.words) >= MIN_WORDS]
    return sum(length > LONG_WORDS for length in lengths) / max(len(lengths), 1)


def _broken(sentence: Sentence) -> Iterator[str]:
    if len(sentence.words) > MAX_WORDS:
        yield f"{len(sentence.words)} words, at most {MAX_WORDS} are allowed, {LONG_WORDS} are the goal: split it"
    if sentence.words and sentence.words[0] in INVERTED and not sentence.text.rstrip("*\"')").endswith("?"):
        yield f'begins with "{sentence.words[0]}": write subject, verb, object, or begin with "If" or "When"'
    for word in sentence.words:
        if (instead := PRIVATE.get(word.lower().strip(".,;:()\"'"))) is not None:
            yield f'private word "{word.strip(".,;:()")}": write {instead}'


def _blocks(markdown: str) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    """(first line's number, the lines with their numbers) of each block of text; a cell of a table is one."""
    block: list[tuple[int, str]] = []
    for number, line in _prose_lines(markdown):
        text = re.sub(r"^\s*(?:>\s?)*", "", line)
        starts = _ITEM.match(text) is not None
        if (not text.strip() or text.startswith(("#", "|", "!!!")) or starts) and block:
            yield block[0][0], block
            block = []
        if text.startswith("|"):
            yield from (() if _TABLE_RULE.match(text.strip()) else _cells(number, text))
        elif text.strip() and not text.startswith(("#", "!!!")):
            block.append((number, _ITEM.sub("", text, count=1) if starts else text))
    if block:
        yield block[0][0], block


def _cells(number: int, row: str) -> Iterator[tuple[int, list[tuple[int, str]]]]:
    for cell in re.split(r"(?<!\\)\|", row.strip().strip("|")):
        if cell.strip():
            yield number, [(number, cell)]


def _prose_lines(markdown: str) -> Iterator[tuple[int, str]]:
    """Without front matter, fenced and indented code, and HTML comments; their lines are empty."""
    fence, comment, indented, before = "", False, False, ""
    for number, line in enumerate(markdown.splitlines(), 1):
        opened = _FENCE.match(line)
        if fence:
            fence = "" if opened and opened[1].startswith(fence) else fence
            line = ""
        elif opened:
            fence, line = opened[1], ""
        elif comment or line.lstrip().startswith("<!--"):
            comment, line = "-->" not in line, ""
        indented = line.startswith("    ") and (indented or not before.strip()) and not _ITEM.match(line)
        before = line
        yield number, "" if indented else line


def _split(path: str, line: int, block: list[tuple[int, str]]) -> Iterator[Sentence]:
    codes: list[str] = []

    def keep(match: re.Match[str]) -> str:
        codes.append(match[0])
        return f"\x00{len(codes) - 1}\x00"

    text, starts = "", []
    for number, part in block:
        starts.append((len(text), number))
        text += " ".join(part.split()) + " "
    plain = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", keep, text)
    begin = 0
    for end in [*_ends(plain), len(plain)]:
        shown = re.sub(r"\x00(\d+)\x00", lambda match: codes[int(match[1])], plain[begin:end]).strip()
        place = len(re.sub(r"\x00(\d+)\x00", lambda match: codes[int(match[1])], plain[:begin]))
        number = max((at for at in starts if at[0] <= place), default=(0, line))[1]
        words = _LINK.sub(r"\1", plain[begin:end])
        if counted := tuple(word.strip("*_") for word in words.split() if re.search(r"[A-Za-z0-9]", word)):
            yield Sentence(path, number, shown, counted)
        begin = end


def _ends(plain: str) -> Iterator[int]:
    for match in _SENTENCE_END.finditer(plain):
        if not _ABBREVIATION.search(plain[: match.start() + 1]):
            yield match.end()


def proselint_offences(path: str, markdown: str) -> list[Offence]:
    """What proselint finds in the page, without its code."""
    if not CheckRegistry().checks:
        CheckRegistry().register_many(__register__)
    plain = without_code(markdown)
    checks = DEFAULT["checks"] | dict.fromkeys(NOT_CHECKED, False)
    lines = markdown.splitlines()
    return [
        Offence(f"proselint: {found.check_result.message}", Sentence(path, line, lines[line - 1].strip(), ()))
        for found in LintFile(path, plain).lint({**DEFAULT, "checks": checks})
        if not found.check_result.check_path.startswith(NOT_CHECKED)
        for line in [min(max(found.pos[0], 1), len(lines))]
    ]


def without_code(markdown: str) -> str:
    """
    The same lines, for a linter that knows no Markdown: those of headings, code and comments are empty, each inline code is another
    word, links are their text, and a number, or a product as 2 x 2 x 2, has no spaces.
    """
    letters = cycle("abcdefghijklm")
    prose = ("" if line.startswith("#") else line for _, line in _prose_lines(markdown))
    lines = (re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", lambda _: f"code{next(letters)}", line) for line in prose)
    return "\n".join(re.sub(r"(?<=\d) (?:x )?(?=\d)", "", _LINK.sub(r"\1", line)) for line in lines)


def pages() -> list[Path]:
    """The pages that the rules hold for."""
    return [PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md"))]


def main(arguments: Sequence[str]) -> int:
    named = {argument: Path(argument) for argument in arguments} or {
        str(page.relative_to(PROJECT)): page for page in pages()
    }
    texts = {name: page.read_text(encoding="utf-8") for name, page in named.items()}
    found = [each for name, text in texts.items() for each in sentences(name, text)]
    broken = offences(found) + [each for name, text in texts.items() for each in proselint_offences(name, text)]
    for offence in broken:
        print(offence)
    share = long_share(found)
    print(
        f"prose: {len(found)} sentences, {share:.1%} have more than {LONG_WORDS} words (at most {LONG_SHARE:.0%}), "
        f"{len(broken)} break a rule"
    )
    return 1 if broken or share > LONG_SHARE else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
