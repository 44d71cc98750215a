"""Where ranks that may be lost agree on who averages together: signs of life and quorums in a store."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict
from typing import Any

from torch._C._distributed_c10d import PrefixStore, Store

from timesyncd.training.policy.quorum import (
    AveragingOutcome,
    Process,
    Quorum,
    QuorumLimits,
    QuorumMember,
    SignsOfLife,
    complete_quorum,
    outcome_of,
    sign_text,
)

#: How often a rank gives a sign of life, and looks for those of the others.
SIGN_EVERY_S = 0.2

#: How long a rank sleeps between two looks into the store while it waits.
LOOK_EVERY_S = 0.01


class QuorumRoom:
    """
    One rank's view of the quorums of a job. `number`: of the quorum that it waits for, or is in. The methods raise
    RuntimeError where the store is lost.

    Any waiting rank may propose a quorum. The store keeps the first proposal of each number, and so all agree.
    """

    def __init__(self, rank: int, world_size: int, store: Store, prefix: str, limits: QuorumLimits) -> None:
        self.process: Process = rank, time.time_ns()
        self.number = 0
        self._former: Quorum | None = None
        self._ranks, self._limits = range(world_size), limits
        self._store = PrefixStore(prefix, store)
        self._life = _LifeSigns(self.process, world_size, PrefixStore(prefix, _connection_of(store)))
        for each in self._ranks:  # so that all can be read at once; a value that is there stays
            for name in ("waiting", "done"):
                self._store.compare_set(f"{name}/{each}", "", "")
        self._store.compare_set("newest", "", "0")
        self._life.start()

    def wait(self, rounds: int, step: int) -> Quorum:
        """The next quorum with this process."""
        own = QuorumMember(*self.process, rounds, step)
        began_ns, registered = time.monotonic_ns(), -1
        while True:
            self.number = max(self.number, int(self._store.get("newest")))
            if (quorum := self._known()) is not None:
                self._former = quorum
                if own.process in quorum.processes:
                    return quorum
                self.number += 1
                continue
            if registered != self.number:
                registered = self.number
                self._store.set(f"waiting/{own.rank}", json.dumps([registered, asdict(own)]))
            self._propose(time.monotonic_ns() - began_ns)
            time.sleep(LOOK_EVERY_S)

    def settle(self, quorum: Quorum, has_mean: bool) -> AveragingOutcome:
        """What became of the averaging of this quorum. The next `wait` is for a later one."""
        number, self.number = self.number, self.number + 1
        if not has_mean:
            return self._decide(number, AveragingOutcome.ABORTED)
        self._store.set(f"done/{self.process[0]}", _done(number, self.process))
        while True:
            if self._store.check([f"outcome/{number}"]):
                return AveragingOutcome(self._store.get(f"outcome/{number}").decode())
            texts = self._texts("done")
            done = [each for each in quorum.processes if texts[each[0]] == _done(number, each)]
            outcome = outcome_of(quorum, done, self._alive())
            if outcome is not None:
                return self._decide(number, outcome)
            time.sleep(LOOK_EVERY_S)

    def leave(self) -> None:
        """The others go on without this rank at once."""
        self._life.stop()

    def _known(self) -> Quorum | None:
        key = f"quorum/{self.number}"
        return Quorum.parse(self._store.get(key).decode()) if self._store.check([key]) else None

    def _propose(self, waited_ns: int) -> None:
        texts = [json.loads(text) for text in self._texts("waiting") if text]
        waiting = [QuorumMember(**member) for number, member in texts if number == self.number]
        quorum = complete_quorum(waiting, self._alive(), len(self._ranks), self._former, waited_ns, self._limits)
        if quorum is not None:
            self._store.compare_set(f"quorum/{self.number}", "", quorum.text())
            self._store.set("newest", str(self.number))

    def _decide(self, number: int, outcome: AveragingOutcome) -> AveragingOutcome:
        return AveragingOutcome(self._store.compare_set(f"outcome/{number}", "", outcome).decode())

    def _texts(self, name: str) -> list[str]:
        return [text.decode() for text in self._store.multi_get([f"{name}/{each}" for each in self._ranks])]

    def _alive(self) -> frozenset[Process]:
        return self._life.alive(self._limits.silent_ns) | {self.process}


def _done(number: int, process: Process) -> str:
    return f"{number}:{process[1]}"


def _connection_of(store: Store) -> Any:
    """A connection of its own, since on a shared one the signs would wait for calls of the script."""
    connection: Any = store
    return connection.clone()


class _LifeSigns:
    """Gives this rank's signs of life, and sees those of the others, in a thread that ends with the process."""

    def __init__(self, process: Process, world_size: int, store: Store) -> None:
        self._store, self._process = store, process
        self._key = f"sign/{process[0]}"
        self._keys = [f"sign/{each}" for each in range(world_size)]
        self._seen, self._lock, self._stop = SignsOfLife(), threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="signs-of-life", daemon=True)

    def start(self) -> None:
        for key in self._keys:
            self._store.compare_set(key, "", "")
        self._give(0)
        self._thread.start()

    def alive(self, silent_ns: int) -> frozenset[Process]:
        with self._lock:
            return self._seen.alive(time.monotonic_ns(), silent_ns)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._store.set(self._key, "")

    def _run(self) -> None:
        given = 0
        try:
            while not self._stop.wait(SIGN_EVERY_S if given else 0):
                given += 1
                self._give(given)
        except RuntimeError:  # the store is lost: the calls of the script find that too
            return

    def _give(self, number: int) -> None:
        self._store.set(self._key, sign_text(self._process, number))
        signs = self._store.multi_get(self._keys)
        now_ns = time.monotonic_ns()
        with self._lock:
            for rank, sign in enumerate(signs):
                self._seen.see(rank, sign.decode(), now_ns)
