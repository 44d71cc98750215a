"""Timestamps with a scale: UTC, TAI and grandmaster nanoseconds are three types, and none of them is a plain int."""

from __future__ import annotations

from typing import ClassVar, Never, Self, overload

from timesyncd.bound import Reference


class ScaledNs(int):
    """
    Integer nanoseconds since 1970 on one scale. Use UtcNs, TaiNs or GmNs, never this class itself.

    It is a subclass of int and not a NewType, because a NewType does not exist at run time: `before(t)` could not find the clock to ask,
    and a mistake would pass without a type checker. mypy treats both alike as an argument.

    Plain ints are durations: timestamp +- int is a timestamp, and timestamp - timestamp is an int. Everything else is as with ints. Two
    scales, or a timestamp and a plain int, cannot be ordered, subtracted or added (TypeError). Timestamps of two scales are unequal, as
    with datetime.
    """

    __slots__ = ()
    reference: ClassVar[Reference]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__
    __hash__ = int.__hash__

    def __add__(self, ns: int) -> Self:
        if isinstance(ns, ScaledNs):
            raise TypeError(
                f"{type(self).__name__} + {type(ns).__name__}: two timestamps cannot be added; add plain nanoseconds"
            )
        total = super().__add__(ns)
        return total if total is NotImplemented else type(self)(total)

    __radd__ = __add__

    @overload
    def __sub__(self, other: Self) -> int: ...  # type: ignore[overload-overlap]
    @overload
    def __sub__(self, other: int) -> Self: ...
    def __sub__(self, other: int) -> int:
        if isinstance(other, ScaledNs):
            return super().__sub__(self._same(other))
        total = super().__sub__(other)
        return total if total is NotImplemented else type(self)(total)

    def __rsub__(self, other: int) -> Never:
        raise self._mixed(other)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) if type(other) is type(self) or not isinstance(other, ScaledNs) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Self) -> bool:  # type: ignore[override]
        return super().__lt__(self._same(other))

    def __le__(self, other: Self) -> bool:  # type: ignore[override]
        return super().__le__(self._same(other))

    def __gt__(self, other: Self) -> bool:  # type: ignore[override]
        return super().__gt__(self._same(other))

    def __ge__(self, other: Self) -> bool:  # type: ignore[override]
        return super().__ge__(self._same(other))

    def _same(self, other: int) -> int:
        if type(other) is not type(self):
            raise self._mixed(other)
        return other

    def _mixed(self, other: object) -> TypeError:
        mine, others = type(self).__name__, type(other).__name__
        if isinstance(other, ScaledNs):
            return TypeError(f"{mine} with {others}: two scales; read both timestamps on one of them, {_SOURCES}")
        return TypeError(f"{mine} with {others}: a plain number has no scale; give {mine}(...) if it is on that scale")


_SOURCES = "now() for UtcNs, tai_now() for TaiNs, gm_now() for GmNs"


class UtcNs(ScaledNs):
    """UTC as POSIX counts it: leap seconds are not counted. The scale of `Clock.now()`."""

    __slots__ = ()
    reference = Reference.UTC


class TaiNs(ScaledNs):
    """TAI, UTC + 37 s since 2017: the scale of `Clock.tai_now()`."""

    __slots__ = ()
    reference = Reference.TAI


class GmNs(ScaledNs):
    """
    The grandmaster's scale minus the whole seconds that the PTP daemon removes: the scale of `Clock.gm_now()`.

    It is UTC only as far as the grandmaster is right, and has no relation to UTC if its timescale is arbitrary.
    """

    __slots__ = ()
    reference = Reference.GRANDMASTER


#: A timestamp on one of the three scales.
Timestamp = UtcNs | TaiNs | GmNs
