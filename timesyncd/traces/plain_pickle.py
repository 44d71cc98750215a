"""
Reads a pickle of plain data: dicts, lists, tuples, texts, numbers, truth values and None.

Python's unpickler runs what a pickle names, and does work without end for some that name nothing: a tuple that holds the
one before it twice, fifty times over, takes 2^50 steps as the key of a dict. This reader has no operation that names
anything, and a key is a text or a number. Pure.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any, NoReturn

from timesyncd.errors import Malformed

_KEY_TYPES = (str, int, float, bool, type(None))

#: An integer of more octets is no number of a dump, and takes quadratic time to print.
_MAX_INT_BITS = 128

_Mark = object()


class _Stack:
    """The values so far. Methods raise Malformed for what a stack of plain values does not allow."""

    def __init__(self) -> None:
        self._values: list[Any] = []
        self._memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self._values.append(value)

    def pop(self) -> Any:
        if not self._values or self._values[-1] is _Mark:
            raise Malformed("an operation lacks a value")
        return self._values.pop()

    def pop_many(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def pop_to_mark(self) -> list[Any]:
        found = []
        while self._values and self._values[-1] is not _Mark:
            found.append(self._values.pop())
        if not self._values:
            raise Malformed("an operation lacks its mark")
        self._values.pop()
        return found[::-1]

    def top(self, kind: type) -> Any:
        """The container that the values before were taken from."""
        if not self._values or type(self._values[-1]) is not kind:
            raise Malformed(f"an operation needs a {kind.__name__}")
        return self._values[-1]

    def put(self, number: int | None) -> None:
        """Number the top value; None: with the next number."""
        if not self._values:
            raise Malformed("an operation lacks a value")
        self._memo[len(self._memo) if number is None else number] = self._values[-1]

    def get(self, number: int) -> None:
        if number not in self._memo:
            raise Malformed(f"refers to value {number}, which there is not")
        self._values.append(self._memo[number])


def _as_dict(pairs: list[Any]) -> dict[Any, Any]:
    if len(pairs) % 2:
        raise Malformed("a key of a dict has no value")
    keys = pairs[::2]
    if any(type(key) not in _KEY_TYPES for key in keys):
        raise Malformed("a key of a dict is neither a text nor a number")
    return dict(zip(keys, pairs[1::2], strict=True))


def _refer(stack: _Stack, name: str | None) -> NoReturn:
    """A class or function, by an operation's argument or by the two texts on the stack."""
    named = name.split(" ") if name is not None else map(str, stack.pop_many(2))
    raise Malformed(f"refers to {'.'.join(named)[:80]}")


def _number(stack: _Stack, number: int) -> None:
    if number.bit_length() > _MAX_INT_BITS:
        raise Malformed(f"a number has {number.bit_length()} bits")
    stack.push(number)


_Operation = Callable[[_Stack, Any], object]


def _pushing(value: Any) -> _Operation:
    return lambda stack, _: stack.push(value)


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}

_OPERATIONS: dict[str, _Operation] = {
    **{name: _pushing(value) for name, value in _CONSTANTS.items()},
    **dict.fromkeys(("PROTO", "FRAME"), lambda stack, _: None),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4"), _number),
    **dict.fromkeys(
        ("BINFLOAT", "FLOAT", "BINUNICODE", "BINUNICODE8", "SHORT_BINUNICODE", "UNICODE"),
        lambda stack, value: stack.push(value),
    ),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda stack, number: stack.put(number)),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda stack, number: stack.get(number)),
    **dict.fromkeys(("GLOBAL", "INST", "STACK_GLOBAL"), _refer),
    "MEMOIZE": lambda stack, _: stack.put(None),
    "MARK": lambda stack, _: stack.push(_Mark),
    "POP": lambda stack, _: stack.pop(),
    "POP_MARK": lambda stack, _: stack.pop_to_mark(),
    "EMPTY_DICT": lambda stack, _: stack.push({}),
    "EMPTY_LIST": lambda stack, _: stack.push([]),
    "EMPTY_TUPLE": lambda stack, _: stack.push(()),
    "TUPLE1": lambda stack, _: stack.push(tuple(stack.pop_many(1))),
    "TUPLE2": lambda stack, _: stack.push(tuple(stack.pop_many(2))),
    "TUPLE3": lambda stack, _: stack.push(tuple(stack.pop_many(3))),
    "TUPLE": lambda stack, _: stack.push(tuple(stack.pop_to_mark())),
    "LIST": lambda stack, _: stack.push(stack.pop_to_mark()),
    "DICT": lambda stack, _: stack.push(_as_dict(stack.pop_to_mark())),
    "APPEND": lambda stack, _: _append(stack, stack.pop_many(1)),
    "APPENDS": lambda stack, _: _append(stack, stack.pop_to_mark()),
    "SETITEM": lambda stack, _: _set_items(stack, stack.pop_many(2)),
    "SETITEMS": lambda stack, _: _set_items(stack, stack.pop_to_mark()),
}


def _append(stack: _Stack, values: list[Any]) -> None:
    stack.top(list).extend(values)


def _set_items(stack: _Stack, pairs: list[Any]) -> None:
    stack.top(dict).update(_as_dict(pairs))


def load_plain(data: bytes) -> Any:
    """
    The value, whose containers may be shared, and may hold themselves: print none of them whole. Raises Malformed for
    anything else.
    """
    stack = _Stack()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return stack.pop()
            operation = _OPERATIONS.get(opcode.name)
            if operation is None:
                raise Malformed(f"has the operation {opcode.name}, which plain data do not need")
            operation(stack, argument)
    except (ValueError, OverflowError, MemoryError) as error:
        raise Malformed(f"is no pickle: {str(error)[:80]}") from error
    raise Malformed("is truncated")
