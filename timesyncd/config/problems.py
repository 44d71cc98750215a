"""What is wrong with a user's own input, as one line each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from timesyncd.config.sections import SecretSettings
from timesyncd.config.toml_lines import Keys
from timesyncd.errors import suggestion

#: Of a value or a path in an error.
_MOST_QUOTED_CHARS = 80

_SECRET_NAME = re.compile("pass|pwd|secret|communit|token|credential", re.IGNORECASE)

_NUMBER = re.compile(r"-?\d+(\.\d+)?")

_WRONG_TABLE = {"model_type", "model_attributes_type", "dict_type"}


@dataclass(frozen=True, slots=True)
class Problem:
    """`keys`: of the value that is wrong. `text`: one line, with the value's path."""

    keys: Keys
    text: str


def problems_of(
    error: ValidationError,
    table: Keys = (),
    *,
    model: type[BaseModel] | None = None,
    shared: Collection[str] = (),
    noun: str = "key",
    with_value: bool = True,
) -> Iterator[Problem]:
    """
    All problems in pydantic's order: each with path, value, and what is allowed there.

    `table` is the path of the table that was validated. `model` is what it was validated by: its keys are listed where
    one is unknown, in the outermost table with the `shared` ones of a driver's table; `noun` is what the reader calls
    such a key. Without `with_value` no value is quoted: so for what came over a network. Below a key that looks like a
    secret's, none ever is.
    """
    where = path_text(table)
    wrong = {each["loc"][:-1] for each in error.errors(include_url=False)}
    for each in error.errors(include_url=False):
        if each["type"] == "too_short" and each["loc"] in wrong:
            continue  # pydantic counts the items without the wrong ones
        location = each["loc"]
        path = f"{where}{path_text(location, is_first=not where)}"[: len(where) + _MOST_QUOTED_CHARS]
        keys = _keys_at(model, location[:-1]) | (set(shared) if len(location) == 1 else set())
        yield Problem((*table, *location), _text(each, path, keys, noun, with_value))


def validation_text(error: ValidationError, where: str = "", **options: Any) -> str:
    """The first of `problems_of` alone, in a table whose path is written as `where`."""
    return next(problems_of(error, (where,) if where else (), **options)).text


def path_text(keys: Keys, is_first: bool = True) -> str:
    """As `source[0].bounds.drift_floor_ppb`."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{_printable(key)}" for key in keys)
    return text.removeprefix(".") if is_first else text


def _text(error: ErrorDetails, path: str, keys: Collection[str], noun: str, with_value: bool) -> str:
    if error["type"] == "missing":
        return f"{path}: missing"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        near = suggestion(str(error["loc"][-1]), keys)
        message = f"unknown {noun}{near or ';'} allowed here: {', '.join(sorted(keys)) or 'none'}"
    elif error["type"] in _WRONG_TABLE and error.get("ctx", {}).get("class_name") == SecretSettings.__name__:
        return f'{path}: a secret is not written here: give {{ file = "/path" }} or {{ env = "NAME" }}'
    else:
        message += _remedy(error)
    # Keys of one table that contradict each other have no value of their own.
    is_table = isinstance(error["input"], dict) and error["type"] == "value_error"
    value = f" = {_quoted(error)}" if with_value and path and not is_table else ""
    return " ".join(f"{path}{value}: {message}".removeprefix(": ").splitlines())


def _remedy(error: ErrorDetails) -> str:
    """How to write a number in quotes, or a flag in another word; empty: the message says enough."""
    match error["type"], error["input"]:
        case "bool_type", _:
            return ": write true or false"
        case (("int_type" | "float_type"), str(text)) if _NUMBER.fullmatch(text):
            return ": write it without quotes"
    return ""


def _quoted(error: ErrorDetails) -> str:
    """
    The value, but no secret: an operator may have written one where its file belongs, and others read the journal.
    """
    names_a_secret = any(isinstance(part, str) and _SECRET_NAME.search(part) for part in error["loc"])
    if names_a_secret and not isinstance(error["input"], bool | int):
        return "..."
    try:
        quoted = repr(error["input"])
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return "..."
    return quoted if len(quoted) <= _MOST_QUOTED_CHARS else f"{quoted[:_MOST_QUOTED_CHARS]}..."


def _printable(key: str) -> str:
    """A key may hold a line end or a terminal's control sequence; an error has one line, in a log that others read."""
    return key if key.isprintable() else ascii(key)


def _keys_at(model: Any, location: tuple[int | str, ...]) -> set[str]:
    """The keys allowed in the table at this place."""
    for part in location:
        if isinstance(part, int) or model is None or part not in model.model_fields:
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return set() if model is None else set(model.model_fields) - {"options"}
