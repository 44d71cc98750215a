"""
Which stored values still have their column's type.

SQLite keeps a value of any type in any column, and its `integrity_check` accepts one: a flipped bit can make a text of a number.
PostgreSQL does not, so there every value is intact.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

#: For `sqlite3.Connection.text_factory`: a text that is not UTF-8 is read with replacement characters, and raises nothing.
LENIENT_TEXT = partial(str, encoding="utf-8", errors="replace")


class intact(FunctionElement[bool]):
    """The SQL condition that each of the given columns holds a value of its type."""

    type = Boolean()
    inherit_cache = True


@compiles(intact)
def _always(element: intact, compiler: SQLCompiler, **options: Any) -> str:
    return "true"


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
        condition = f"({condition} AND json_valid({name}))"
    return f"({name} IS NULL OR {condition})" if column.nullable else condition


def storage_class(column: Column[Any]) -> str:
    """SQLite's name of the type that the column's values have."""
    return "integer" if isinstance(column.type, BigInteger | Integer | Boolean) else "text"
