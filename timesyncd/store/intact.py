"""
Which stored values still are of their column's type.

SQLite keeps a value of any type in any column, and its `integrity_check` accepts one: a flipped bit can make a text of a number.
PostgreSQL does not. In both a JSON value may have another shape, and a number may be too low.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from timesyncd.store.tables import LEAST, SHAPE

#: For `sqlite3.Connection.text_factory`: a text that is not UTF-8 is read with replacement characters, and raises nothing.
LENIENT_TEXT = partial(str, encoding="utf-8", errors="replace")


class intact(FunctionElement[bool]):
    """The SQL condition that each of the given columns holds a value of its type, and of its shape or least number."""

    type = Boolean()
    inherit_cache = True


@compiles(intact)
def _by_content(element: intact, compiler: SQLCompiler, **options: Any) -> str:
    terms = (_content(column, compiler.process(column, **options)) for column in element.clauses)
    return f"({' AND '.join(['true', *filter(None, terms)])})"


def _content(column: Any, name: str) -> str | None:
    if SHAPE in column.info:
        return f"({name} IS NULL OR json_typeof({name}) = '{column.info[SHAPE]}')"
    return f"{name} >= {column.info[LEAST]}" if LEAST in column.info else None


@compiles(intact, "sqlite")
def _by_value(element: intact, compiler: SQLCompiler, **options: Any) -> str:
    terms = (_condition(column, compiler.process(column, **options)) for column in element.clauses)
    return f"({' AND '.join(terms)})"


class is_name(FunctionElement[bool]):
    """
    The SQL condition that a text is a name: ASCII (config.NAME).

    A damaged name is read with replacement characters, so a search that goes on from it would find it again for ever.
    """

    type = Boolean()
    inherit_cache = True


@compiles(is_name)
def _always_name(element: is_name, compiler: SQLCompiler, **options: Any) -> str:
    return "true"


@compiles(is_name, "sqlite")
def _is_ascii(element: is_name, compiler: SQLCompiler, **options: Any) -> str:
    names = (compiler.process(column, **options) for column in element.clauses)
    return "(" + " AND ".join(f"(typeof({name}) = 'text' AND {name} NOT GLOB '*[^ -~]*')" for name in names) + ")"


def _condition(column: Any, name: str) -> str:
    kind = storage_class(column)
    condition = f"typeof({name}) = '{kind}'"
    if isinstance(column.type, JSON):
        is_of_shape = f"CASE WHEN json_valid({name}) THEN json_type({name}) = '{column.info[SHAPE]}' ELSE 0 END"
        condition = f"({condition} AND {is_of_shape})"
    elif LEAST in column.info:
        condition = f"({condition} AND {name} >= {column.info[LEAST]})"
    return f"({name} IS NULL OR {condition})" if column.nullable else condition


def storage_class(column: Column[Any]) -> str:
    """SQLite's name of the type that the column's values have."""
    return "integer" if isinstance(column.type, BigInteger | Integer | Boolean) else "text"


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no number of a double")
    return number


_decode = json.JSONDecoder(parse_float=_finite).decode


def decoded(text: str | bytes) -> Any:
    """
    A stored JSON value. None for one that the database's grammar allows and Python does not hold: thousands of digits, an
    exponent beyond a double's, or nesting beyond the stack.
    """
    try:
        return _decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        return None


T = TypeVar("T")
Source = TypeVar("Source")


def checked(type: TypeAdapter[T], value: object) -> T | None:
    """A decoded JSON value as its type; None for NULL, and for a value that is none of that type."""
    try:
        return None if value is None else type.validate_python(value)
    except ValidationError:
        return None


def readable(parse: Callable[[Source], T], rows: Iterable[Source]) -> list[T]:
    """What `parse` makes of the rows. A row that it refuses by ValidationError is left out, and hides no other."""
    found = []
    for row in rows:
        try:
            found.append(parse(row))
        except ValidationError:
            continue
    return found
