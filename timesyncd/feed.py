"""Latest value, and one bounded queue a subscriber: a slow subscriber loses its oldest values and is told how many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Subscriber(Protocol[T_contra]):
    """Is told of everything that is published, and never waits. `dropped` counts what it lost."""

    dropped: int

    def put(self, value: T_contra) -> None: ...


class Subscription(Generic[T]):
    """An asynchronous iterator over what was published since it was made. `dropped` counts what it lost."""

    def __init__(self, size: int) -> None:
        self.dropped = 0
        self._queue: deque[T] = deque(maxlen=size)
        self._ready = asyncio.Event()

    def put(self, value: T) -> None:
        if len(self._queue) == self._queue.maxlen:
            self.dropped += 1
        self._queue.append(value)
        self._ready.set()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        while not self._queue:
            self._ready.clear()
            await self._ready.wait()
        return self._queue.popleft()


class Feed(Generic[T]):
    """Publishing never waits. `key` names what a value replaces in `latest`."""

    def __init__(self, key: Callable[[T], Hashable]) -> None:
        self.latest: dict[Hashable, T] = {}
        self._key = key
        self._subscriptions: set[Subscriber[T]] = set()

    def publish(self, value: T) -> None:
        self.latest[self._key(value)] = value
        for subscription in self._subscriptions:
            subscription.put(value)

    def subscribe(self, size: int = 1_000) -> Subscription[T]:
        subscription = Subscription[T](size)
        self.attach(subscription)
        return subscription

    def attach(self, listener: Subscriber[T]) -> None:
        self._subscriptions.add(listener)

    def unsubscribe(self, listener: Subscriber[T]) -> None:
        self._subscriptions.discard(listener)

    @property
    def watched(self) -> bool:
        """Somebody subscribes."""
        return bool(self._subscriptions)

    @property
    def dropped(self) -> int:
        """What the present subscribers lost together."""
        return sum(subscription.dropped for subscription in self._subscriptions)
