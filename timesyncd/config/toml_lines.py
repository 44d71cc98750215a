"""The line of each key in a TOML file; tomllib reports no line of a valid key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Keys = tuple[str | int, ...]
"""The path of a value: names of tables and keys, and indices in arrays of tables."""

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}(?!")'
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}=,.\n]"
    r"|[^\s\[\]{}=,.\"'#]+",
    re.DOTALL,
)


def find_lines(text: str) -> dict[Keys, int]:
    """
    The line, from 1, of each table's header and of each key that begins a line. `text` is valid TOML: of other text the
    result is incomplete. A value inside an inline table has the line of that table's key.
    """
    lines = _Lines()
    for number, tokens in _statements(text):
        lines.add(number, tokens)
    return lines.found


def line_of(keys: Keys, lines: Mapping[Keys, int]) -> int | None:
    """The line of that value, or of the innermost table around it that has a line."""
    for length in range(len(keys), 0, -1):
        if keys[:length] in lines:
            return lines[keys[:length]]
    return None


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """The line's number and the tokens of each header and of each assignment, whose value may go on over lines."""
    number = first = 1
    depth, tokens = 0, list[str]()
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "\n" and depth == 0:
            if tokens:
                yield first, tokens
            tokens = []
        elif not token.startswith("#") and token != "\n":
            first = first if tokens else number
            depth += (token in "[{") - (token in "]}")
            tokens.append(token)
        number += token.count("\n")
    if tokens:
        yield first, tokens


@dataclass
class _Lines:
    found: dict[Keys, int] = field(default_factory=dict)
    _table: Keys = ()
    _lengths: dict[Keys, int] = field(default_factory=dict)  #: of the arrays of tables

    def add(self, number: int, tokens: list[str]) -> None:
        is_array = tokens[:2] == ["[", "["]
        if tokens[0] == "[":
            self._table = self._resolve((), _names(token for token in tokens if token not in "[]"), is_array)
            self.found.setdefault(self._table, number)
        elif "=" in tokens:
            keys = self._resolve(self._table, _names(tokens[: tokens.index("=")]), False)
            self.found.setdefault(keys, number)

    def _resolve(self, table: Keys, names: list[str], is_array: bool) -> Keys:
        """The path of a header's or a key's names: an array of tables is entered at its last table."""
        for position, name in enumerate(names):
            table = (*table, name)
            if is_array and position == len(names) - 1:
                self._lengths[table] = self._lengths.get(table, 0) + 1
            if table in self._lengths:
                table = (*table, self._lengths[table] - 1)
        return table


def _names(tokens: Iterator[str] | list[str]) -> list[str]:
    return [_unquoted(token) for token in tokens if token != "."]


def _unquoted(token: str) -> str:
    if token[0] == "'":
        return token[1:-1]
    if token[0] == '"':
        return re.sub(r'\\(["\\])', r"\1", token[1:-1])
    return token
