"""
Publishes values to subscribers, each with a bounded queue: a slow subscriber loses its oldest values, and counts them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Subscriber(Protocol[T_contra]):
    """Receives every published value without waiting. `dropped` counts the values that it lost."""

    dropped: int

    def put(self, value: T_contra) -> None: ...


class Subscription(Generic[T]):
    """
    The values published since its creation: `await anext()` gives the next. `dropped` counts the values that it lost.
    """

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self._queue: deque[T] = deque(maxlen=size)
        self._ready = asyncio.Event()

    def put(self, value: T) -> None:
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(value)
        self._ready.set()

    async def __anext__(self) -> T:
        while not self._queue:
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()


class Feed(Generic[T]):
    """Publishes without waiting. `key` is the key under which a value replaces the former one in `latest`."""

    def __init__(self, key: Callable[[T], Hashable]) -> None:
        self.latest: dict[Hashable, T] = {}
        self._key = key
        self._subscribers: set[Subscriber[T]] = set()

    def publish(self, value: T) -> None:
        self.latest[self._key(value)] = value
        for subscriber in self._subscribers:
            subscriber.put(value)

    def subscribe(self, size: int = 1_000) -> Subscription[T]:
        subscription = Subscription[T](size)
        self.add(subscription)
        return subscription

    def add(self, subscriber: Subscriber[T]) -> None:
        self._subscribers.add(subscriber)

    def unsubscribe(self, subscriber: Subscriber[T]) -> None:
        self._subscribers.discard(subscriber)

    @property
    def has_subscribers(self) -> bool:
        return bool(self._subscribers)
