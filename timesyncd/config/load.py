"""Reads the configuration: one TOML file. Every error is one line with file, line, key path, value and what is allowed."""

from __future__ import annotations

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from timesyncd.client.files import read_file
from timesyncd.config.problems import Problem, path_text, problems_of
from timesyncd.config.sections import ClockSource, Config, Grandmaster, Section
from timesyncd.config.toml_lines import Keys, find_lines, line_of
from timesyncd.errors import ConfigError, ConfigErrors, suggestion

OptionsOf = Callable[[str], type[BaseModel]]
"""A driver's Options model by the driver's name; raises ConfigError when there is no such driver."""

_BOM = b"\xef\xbb\xbf"


def load(path: Path, options_of: OptionsOf) -> Config:
    """Read the file. Raises ConfigError: where values are wrong a ConfigErrors, with a line for each of them."""
    try:
        data = read_file(path)
    except OSError as error:
        hint = "; create it, or give another path with --config" if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(f"{path}: cannot be read: {error.strerror}{hint}") from error
    if data.startswith(_BOM):
        raise ConfigError(f"{path}:1: begins with a byte order mark, which TOML forbids: save it as UTF-8 without BOM")
    try:
        tables = toml_tables(data)
    except ValueError as error:
        reason = str(error).partition(";")[0]
        hint = '; write text in quotes: name = "node-a"' if reason.startswith("Invalid value") else ""
        raise ConfigError(f"{path}: not valid TOML: {reason}{hint}") from error
    try:
        return parse(tables, options_of, str(path), find_lines(data.decode()))
    except RecursionError as error:
        raise ConfigError(
            f"{path}: its tables are nested too deeply; the configuration has four levels at most"
        ) from error


def toml_tables(data: bytes) -> dict[str, Any]:
    """Of a file. Raises ValueError, also for a number with too many digits, and for what is nested too deeply."""
    try:
        return tomllib.loads(data.decode())
    except RecursionError as error:
        raise ValueError(str(error)) from error


def parse(data: dict[str, Any], options_of: OptionsOf, origin: str, lines: Mapping[Keys, int] | None = None) -> Config:
    """The same from parsed tables; `origin` names the file in errors, and `lines` are those of its keys. Raises ConfigErrors."""
    problems: list[Problem] = []
    data = dict(data)
    for key, model in (("source", ClockSource), ("grandmaster", Grandmaster)):
        tables = data.get(key, [])
        if not isinstance(tables, list):
            text = f"{key} = {tables!r}: must be an array of tables, written as [[{key}]]"
            problems.append(Problem((key,), text))
            tables = []
        data[key] = [_with_options(t, model, options_of, (key, i), problems) for i, t in enumerate(tables)]
    config = None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems.extend(problems_of(error, model=Config))
    if config is not None:
        problems.extend(_contradictions(config))
    if problems or config is None:
        raise ConfigErrors(_located(problems, origin, lines or {}))
    return config


def _located(problems: list[Problem], origin: str, lines: Mapping[Keys, int]) -> list[str]:
    """One text each, in the order of the file."""
    found = {(line_of(problem.keys, lines), problem.text) for problem in problems}
    ordered = sorted(found, key=lambda each: each[0] or 0) if lines else [(None, each.text) for each in problems]
    return [f"{origin}{'' if line is None else f':{line}'}: {text}" for line, text in ordered]


class _Unchecked(BaseModel):
    """In place of options with a problem, so that the other keys are checked too."""


def _with_options(table: Any, model: type[Section], options_of: OptionsOf, at: Keys, problems: list[Problem]) -> Any:
    """The table with its driver's options as a model of the driver; its own problems are added to `problems`."""
    if not isinstance(table, dict):
        return table
    own = {key: value for key, value in table.items() if key in model.model_fields and key != "options"}
    rest = {key: value for key, value in table.items() if key not in own}
    where = (*at, "driver")
    named, own["options"] = own.get("driver"), _Unchecked()
    if not isinstance(named, str):
        text = f"{path_text(where)} = {named!r}: must be the name of a driver; timesyncd drivers lists them"
        problems.append(Problem(where, text))
        return own | {"driver": "unknown"}
    try:
        options = options_of(named)
    except ConfigError as error:
        problems.append(Problem(where, f"{path_text(where)} = {named!r}: {error}"))
        return own
    try:
        own["options"] = options.model_validate(rest)
    except ValidationError as error:
        shared = set(model.model_fields) - {"options"}
        problems.extend(problems_of(error, at, model=options, shared=shared))
    return own


def _contradictions(config: Config) -> Iterator[Problem]:
    """Values that are valid alone."""
    yield from _repeated_names(config)
    yield from _unknown_oscillators(config)
    yield from _unknown_sources(config)
    yield from _own_segments(config)


def _repeated_names(config: Config) -> Iterator[Problem]:
    named: list[tuple[Keys, str]] = [(("source", i, "name"), each.name) for i, each in enumerate(config.source)]
    named += [(("grandmaster", i, "name"), each.name) for i, each in enumerate(config.grandmaster)]
    for keys, name, times in _repeated(named):
        yield Problem(keys, f"name = {name!r}: used {times} times; names of sources and grandmasters must be unique")
    jobs: list[tuple[Keys, str]] = [(("job", i, "name"), each.name) for i, each in enumerate(config.job)]
    for keys, name, times in _repeated(jobs):
        yield Problem(keys, f"job: name = {name!r}: used {times} times; names of jobs must be unique")


def _repeated(named: list[tuple[Keys, str]]) -> Iterator[tuple[Keys, str, int]]:
    """Once for each repeated name, with its last place."""
    counts = Counter(name for _, name in named)
    for keys, name in {name: (keys, name) for keys, name in named}.values():
        if counts[name] > 1:
            yield keys, name, counts[name]


def _unknown_oscillators(config: Config) -> Iterator[Problem]:
    for index, grandmaster in enumerate(config.grandmaster):
        if grandmaster.oscillator is not None and grandmaster.oscillator not in config.oscillator:
            keys = ("grandmaster", index, "oscillator")
            known = ", ".join(sorted(config.oscillator)) or "none"
            yield Problem(
                keys,
                f"{path_text(keys)} = {grandmaster.oscillator!r}: no such section [oscillator.{grandmaster.oscillator}]"
                f"{suggestion(grandmaster.oscillator, config.oscillator)}; configured oscillators: {known}",
            )


def _unknown_sources(config: Config) -> Iterator[Problem]:
    names = [source.name for source in config.source]
    for index, source in enumerate(config.source):
        for other in source.independent_of:
            if other == source.name or other not in names:
                keys = ("source", index, "independent_of")
                others = ", ".join(name for name in names if name != source.name) or "none"
                yield Problem(keys, f"{path_text(keys)} = {other!r}: must name another source; there are: {others}")


def _own_segments(config: Config) -> Iterator[Problem]:
    """A source that would read what this daemon writes: its own bound would prove itself."""
    if config.clockbound is None:
        return
    for index, source in enumerate(config.source):
        path = getattr(source.options, "path", None)
        if isinstance(path, Path) and os.path.realpath(path) == os.path.realpath(config.clockbound.path):
            keys = ("source", index, "path")
            text = "is the segment that this daemon writes ([clockbound] path), whose bound proves nothing"
            yield Problem(keys, f"{path_text(keys)} = '{path}': {text}: remove [clockbound], or give it another path")
