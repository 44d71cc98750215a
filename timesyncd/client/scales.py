"""Moments that carry their scale: UTC's, TAI's or the grandmaster's nanoseconds are three types, and none is a plain int."""

from __future__ import annotations

from typing import ClassVar, Never, Self, overload

from timesyncd.bound import Reference


class ScaledNs(int):
    """
    Integer nanoseconds since 1970 on one scale; used as UtcNs, TaiNs or GmNs, never as itself.

    A subclass of int and not a NewType: a NewType is gone at run time, so `before(t)` could not tell which clock to ask, and
    a mistake would pass wherever no type checker runs. As an argument mypy sees both the same.

    Plain ints are lengths of time: moment +- int is a moment, moment - moment is an int, everything else is as with ints. Two
    scales, or a moment and a plain int, are not ordered, subtracted or added (TypeError); as with datetime, moments of two
    scales are merely unequal.
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
                f"{type(self).__name__} + {type(ns).__name__}: moments do not add up; add plain nanoseconds"
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
            return TypeError(
                f"{mine} with {others}: two scales; ask the clock for both moments on one of them, {_SOURCES}"
            )
        return TypeError(f"{mine} with {others}: a plain number has no scale; write {mine}(...) if it is on this one")


_SOURCES = "now() for UtcNs, tai_now() for TaiNs, gm_now() for GmNs"


class UtcNs(ScaledNs):
    """UTC as POSIX counts it: leap seconds do not count. What `Clock.now()` tells."""

    __slots__ = ()
    reference = Reference.UTC


class TaiNs(ScaledNs):
    """TAI, UTC + 37 s since 2017: what `Clock.tai_now()` tells."""

    __slots__ = ()
    reference = Reference.TAI


class GmNs(ScaledNs):
    """
    The grandmaster's scale less the whole seconds that the PTP daemon takes out: what `Clock.gm_now()` tells.

    UTC only as far as the grandmaster is right, and nothing of the kind where its timescale is arbitrary.
    """

    __slots__ = ()
    reference = Reference.GRANDMASTER


#: A timestamp on one of the three scales.
Timestamp = UtcNs | TaiNs | GmNs
