"""
What the client for PyTorch does on a GPU: one machine with one card, four to six minutes.

Each section runs in processes of its own with a deadline. A section that fails leaves its error, and the others run on. `--cpu` runs the
part that needs no card, on gloo. The script writes `result.json` after each section, and the processes' output to `log.txt`.

Two ranks on one card use NCCL where it allows that (`NCCL_MULTI_RANK_GPU_ENABLE`), else gloo for CUDA tensors alone, which refuses CPU
tensors as NCCL does.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout, where nothing is installed

if TYPE_CHECKING:
    import torch
    from torch import nn

    from timesyncd.client import Job
    from timesyncd.ipc.job_datagram import Mark

Facts = dict[str, Any]

MS = 1_000_000
POLICIES = {
    "metered": None,
    "bsp": "bsp",
    "local_sgd": "local_sgd(h=4)",
    "background": "local_sgd(h=8, delay=4)",
    "accumulate": "accumulate(k=4)",
    "selsync": "selsync(quantile=0.5)",
    "topk": "bsp + topk(ratio=0.01)",
    "int8": "bsp + int8",
    "powersgd": "bsp + powersgd(rank=2)",
    "auto": "auto",
}

#: A rank that is late by this much in each step.
LATE_NS = 15 * MS

#: Device time of each process's warm-up.
WARM_UP_STEPS = 10


@dataclass(frozen=True)
class Section:
    run: Callable[[Rank], None]
    ranks: int
    deadline_s: float
    needs_card: bool = True
    argument: str = ""


class Rank:
    """One process of a section: its place, its device, and the facts that it writes as it goes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank: int = options.rank
        self.ranks: int = options.ranks
        self.argument: str = options.argument
        self.steps: int = options.steps
        self.is_cpu: bool = options.cpu
        self.backend: str = options.backend
        self.facts: Facts = {}
        self._file: Path = options.facts
        self._rendezvous: str = options.rendezvous

    def report(self, **facts: Any) -> None:
        """Written at once, so that a process that is killed has left what it found."""
        self.facts.update(facts)
        partial = self._file.with_suffix(".part")
        partial.write_text(json.dumps(self.facts))
        partial.replace(self._file)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """An error inside is a fact of this name, and the section goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  the error is what the section reports
            traceback.print_exc()
            self.report(**{name: f"{type(error).__name__}: {str(error)[:400]}"})

    @property
    def device(self) -> torch.device:
        import torch

        return torch.device("cpu" if self.is_cpu else "cuda:0")

    def init_group(self, backend: str | None = None) -> None:
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        torch.set_num_threads(1 if self.is_cpu else 4)
        chosen = backend or self.backend
        dist.init_process_group(
            chosen,
            init_method=f"file://{self._rendezvous}",
            rank=self.rank,
            world_size=self.ranks,
            timeout=timedelta(seconds=30),
        )
        torch.manual_seed(0)
        self.report(backend=chosen)

    def wait_for_device(self) -> None:

        if not self.is_cpu:
            cuda().synchronize()


def cuda() -> Any:
    """`torch.cuda`, which is only partly typed."""
    import torch

    return torch.cuda


# --- what a rank's job marks


class Listener:
    """Receives a rank's marks where its daemon would, in a runtime folder of its own."""

    def __init__(self) -> None:
        from timesyncd.ipc.job_datagram import SOCKET_NAME

        self.folder = Path(tempfile.mkdtemp(prefix="ts-"))
        self.marks: list[Mark] = []
        self.lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.folder / SOCKET_NAME))
        self._socket.settimeout(0.2)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        from timesyncd.ipc.job_datagram import decode

        while True:
            stopped = self._stop.is_set()
            try:
                datagram = decode(self._socket.recv(65_536))
            except TimeoutError:
                if stopped:
                    return
                continue
            self.marks += datagram.marks
            self.lost = datagram.header.lost

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def metered_job(rank: Rank, name: str) -> Iterator[tuple[Job, Listener]]:
    from timesyncd.client import Job

    listener = Listener()
    job = Job(name, rank=rank.rank, world_size=rank.ranks, runtime_dir=listener.folder)
    try:
        yield job, listener
    finally:
        job.close()
        listener.close()


def marks_by_kind(marks: Sequence[Mark]) -> dict[str, int]:
    from timesyncd.ipc.job_datagram import Kind

    return {Kind(kind).name.lower(): count for kind, count in Counter(mark.kind for mark in marks).items()}


# --- a model


class Slow:
    """A hook of a module's forward pass that makes the rank late, on the host or on the device."""

    def __init__(self, where: str, cycles_per_ms: float) -> None:
        self._where = where
        self._cycles = int(cycles_per_ms * LATE_NS / MS)
        self._slept: list[tuple[Any, Any]] = []

    def __call__(self, *_: object) -> None:
        if self._where == "device":
            begin, end = cuda().Event(enable_timing=True), cuda().Event(enable_timing=True)
            begin.record()
            cuda()._sleep(self._cycles)
            end.record()
            self._slept.append((begin, end))
        else:
            time.sleep(LATE_NS / 1e9)

    def slept_ms(self) -> Facts:
        """How long the device slept in truth: two ranks share its time."""
        return summary([begin.elapsed_time(end) for begin, end in self._slept])


def network(rank: Rank) -> nn.Sequential:
    from torch import nn

    width, layers = (32, 4) if rank.is_cpu else (1024, 8)
    stack = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*stack).to(rank.device)


def wrapped(rank: Rank, module: nn.Module) -> nn.parallel.DistributedDataParallel:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, bucket_cap_mb=0.01 if rank.is_cpu else 8)


def batches(rank: Rank) -> Iterator[torch.Tensor]:
    import torch

    generator = torch.Generator().manual_seed(1 + rank.rank)
    width = 32 if rank.is_cpu else 1024
    pool = [torch.randn(64, width, generator=generator).to(rank.device) for _ in range(8)]
    while True:
        yield from pool


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Iterator[torch.Tensor],
    steps: int,
    seen: Callable[[torch.Tensor], None] = lambda loss: None,
) -> None:
    for _ in range(steps):
        batch = next(inputs)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        seen(loss)
        optimizer.step()


def ms_per_step(rank: Rank, run: Callable[[int], None], steps: int) -> float:
    """The mean over `steps`, with an idle device before and after."""
    rank.wait_for_device()
    began = time.monotonic_ns()
    run(steps)
    rank.wait_for_device()
    return (time.monotonic_ns() - began) / steps / MS


def cycles_per_ms() -> float:

    cuda()._sleep(200_000_000)  # until the clock has risen
    begin, end = cuda().Event(enable_timing=True), cuda().Event(enable_timing=True)
    begin.record()
    cuda()._sleep(100_000_000)
    end.record()
    end.synchronize()
    return 100_000_000 / float(begin.elapsed_time(end))


def digest(module: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def summary(values: Sequence[float]) -> Facts:
    ordered = sorted(values)
    if not ordered:
        return {"n": 0}
    place = len(ordered) - 1
    shares = {"min": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {"n": len(ordered)} | {name: round(ordered[round(place * share)], 3) for name, share in shares.items()}


# --- host waits

_READS = ("item", "tolist", "__float__", "__int__", "__bool__", "__index__", "nonzero", "cpu")


class HostWaits:
    """
    Counts where the client reads a tensor of the device on the host, or waits for a stream or an event.

    Two counts: of Python's calls, by the line of the client, on any device; and of torch's own warnings (`set_sync_debug_mode`), which
    only CUDA gives.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self.calls: Counter[str] = Counter()
        self.warned: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        import torch

        places: list[tuple[Any, str]] = [(torch.Tensor, name) for name in _READS] + [
            (torch, "equal"),
            (torch, "nonzero"),
        ]
        if not self._rank.is_cpu:
            places += [
                (torch.cuda, "synchronize"),
                (torch.cuda.Event, "synchronize"),
                (torch.cuda.Stream, "synchronize"),
            ]
        originals = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name, original in originals:
            setattr(owner, name, self._counted(name, original))
        try:
            with self._warnings():
                yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        import torch

        def called(*args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else None
            is_row = isinstance(first, torch.Tensor) and first.dtype is torch.int64 and first.device.type == "cpu"
            line = None if is_row else client_line()
            if line is not None:
                self.calls[f"{name} {line}"] += 1
            return original(*args, **kwargs)

        return called

    @contextmanager
    def _warnings(self) -> Iterator[None]:

        if self._rank.is_cpu:
            yield
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            cuda().set_sync_debug_mode("warn")
            try:
                yield
            finally:
                cuda().set_sync_debug_mode("default")
        for warning in caught:
            if "called a synchronizing" in str(warning.message):
                self.warned[f"{Path(warning.filename).name}:{warning.lineno}"] += 1

    def facts(self, steps: int) -> Facts:
        return {
            "reads_per_step": round(sum(self.calls.values()) / steps, 2),
            "lines": {line: round(count / steps, 2) for line, count in self.calls.most_common(8)},
            "warned_per_step": round(sum(self.warned.values()) / steps, 2),
            "warned_lines": {line: round(count / steps, 2) for line, count in self.warned.most_common(8)},
        }


def client_line() -> str | None:
    """The innermost line of the package in the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        _, found, path = frame.f_code.co_filename.rpartition("/timesyncd/")
        if found:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return None


# --- sections


def machine(rank: Rank) -> None:
    """What is there."""
    import torch

    rank.report(torch=torch.__version__, python=sys.version.split()[0], cpus=os.cpu_count())
    if rank.is_cpu:
        return
    properties = cuda().get_device_properties(0)
    rank.report(
        device=properties.name,
        multiprocessors=properties.multi_processor_count,
        cuda=torch.version.cuda,
        nccl=".".join(map(str, _nccl_version())),
        nccl_files={str(path): knows_multi_rank(path) for path in nccl_libraries()},
        cycles_per_ms=round(cycles_per_ms()),
    )


def _nccl_version() -> tuple[int, ...]:
    from torch.cuda import nccl

    version: Any = nccl.version
    return tuple(version())


def nccl_libraries() -> list[Path]:
    return [path for folder in sys.path for path in Path(folder).glob("nvidia/nccl/lib/libnccl.so*")]


def knows_multi_rank(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"MULTI_RANK_GPU_ENABLE") >= 0


def two_ranks(rank: Rank) -> None:
    """Whether NCCL accepts two ranks on one card."""
    import torch
    import torch.distributed as dist

    with rank.attempt("refused"):
        cuda().set_device(0)
        rank.init_group("nccl")
        tensor = torch.ones(1 << 20, device=rank.device)
        dist.all_reduce(tensor)
        cuda().synchronize()
        rank.report(works=bool(tensor[0] == 2))
    rank.report(is_done=True)


def anchors(rank: Rank) -> None:
    """How narrow an anchor is (host time before an event is recorded, and after it is seen), and how fast the clocks part."""
    if rank.argument:
        os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = rank.argument

    per_ms = cycles_per_ms()
    side, urgent = cuda().Stream(), cuda().Stream(priority=-1)
    current = cuda().current_stream()
    for queue in ("idle", "full"):
        for name, stream in (("current", current), ("side", side), ("side, urgent", urgent)):
            if queue == "full" and stream is current:
                continue
            cuda().synchronize()
            widths, costs = [], []
            for _ in range(200):
                if queue == "full" and current.query():
                    for _ in range(40):
                        cuda()._sleep(int(per_ms / 2))
                width, cost = anchor_width_ns(stream)
                widths.append(width / 1e3)
                costs.append(cost / 1e3)
            rank.report(
                **{f"{name}, {queue}: width us": summary(widths), f"{name}, {queue}: record us": summary(costs)}
            )
            cuda().synchronize()
    with rank.attempt("drift"):
        rank.report(drift=clock_drift(side))
    rank.report(event_us=event_costs())


def anchor_width_ns(stream: Any) -> tuple[int, int]:
    """The width of one anchor, and the time to record its event."""

    event = cuda().Event(enable_timing=True)
    before = time.time_ns()
    event.record(stream)
    recorded = time.time_ns()
    while not event.query():
        pass
    return time.time_ns() - before, recorded - before


def clock_drift(stream: Any) -> Facts:
    """The rate of the events' clock against the host's over some seconds, in ppm, and its error."""

    def narrow() -> tuple[Any, int, int]:
        found = []
        for _ in range(100):
            event = cuda().Event(enable_timing=True)
            before = time.time_ns()
            event.record(stream)
            while not event.query():
                pass
            found.append((event, before, time.time_ns()))
        return min(found, key=lambda each: each[2] - each[1])

    first, elapsed = narrow(), []
    for _ in range(4):
        time.sleep(0.8)
        later = narrow()
        device_ns = first[0].elapsed_time(later[0]) * 1e6
        host_ns = (later[1] + later[2] - first[1] - first[2]) / 2
        error_ns = (later[2] - later[1] + first[2] - first[1]) / 2
        elapsed.append(
            [round(host_ns / 1e9, 3), round((device_ns / host_ns - 1) * 1e6, 3), round(error_ns / host_ns * 1e6, 3)]
        )
    return {"seconds, ppm, +/- ppm": elapsed}


def event_costs() -> Facts:

    def mean_us(call: Callable[[], object], times: int = 500) -> float:
        began = time.monotonic_ns()
        for _ in range(times):
            call()
        return round((time.monotonic_ns() - began) / times / 1e3, 3)

    one, other = cuda().Event(enable_timing=True), cuda().Event(enable_timing=True)
    one.record()
    other.record()
    cuda().synchronize()
    return {
        "new and record": mean_us(lambda: cuda().Event(enable_timing=True).record()),
        "record": mean_us(one.record),
        "query": mean_us(one.query),
        "elapsed_time": mean_us(lambda: one.elapsed_time(other)),
        "capturing?": mean_us(cuda().is_current_stream_capturing),
    }


def timestamps(rank: Rank) -> None:
    """
    The client's stamps against the profiler's kernels, on a device that is idle before each step and on one that never is.

    A stamp is between two kernels, so it is right within the end of the one and the begin of the other.
    """

    cuda().set_device(0)
    rank.init_group("nccl")
    per_ms = cycles_per_ms()
    for queue in ("idle", "full"):
        with rank.attempt(f"{queue}: error"), metered_job(rank, f"stamps {queue}") as (job, _):
            rank.report(**{queue: stamped_steps(rank, job, queue == "full", per_ms)})


def stamped_steps(rank: Rank, job: Job, is_full: bool, per_ms: float) -> Facts:
    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    from timesyncd.client.torch.steps import steps_of

    steps, kernel = steps_of(job), int(per_ms * (1.0 if is_full else 0.2))
    tensor = torch.zeros(1 << 20, device=rank.device)
    stamped: list[tuple[Any, Any]] = []
    reads: list[int | None] = []
    errors: list[int | None] = []
    hosts: list[tuple[int, int]] = []
    count = 250 if is_full else 100
    ends: list[Any] = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for number in range(count):
            stamps = steps.stamps_for(tensor)
            before = time.time_ns()
            with record_function(f"host {number}"):
                hosts.append((before, time.time_ns()))
            cuda()._sleep(kernel)
            stamp = stamps.now()
            cuda()._sleep(kernel)
            dist.all_reduce(tensor)
            steps.end()
            stamped.append((stamps, stamp))
            ends.append(cuda().Event())
            ends[-1].record()
            if not is_full:
                cuda().synchronize()
            while is_full and number >= 5 and not ends[number - 5].query():
                time.sleep(0.0002)
            late = number - 8 if is_full else number
            if late >= 0:
                _read(stamped[late], reads, errors)
        cuda().synchronize()
        for each in stamped[len(reads) :]:
            _read(each, reads, errors)
    return compared(profiler, reads, errors, hosts)


def _read(stamped: tuple[Any, Any], reads: list[int | None], errors: list[int | None]) -> None:
    stamps, stamp = stamped
    found = stamps.read_with_error(stamp) if stamps.reached(stamp) else None
    reads.append(None if found is None else stamps.read(stamp))
    errors.append(None if found is None else found[1])


def compared(profiler: Any, reads: list[int | None], errors: list[int | None], hosts: list[tuple[int, int]]) -> Facts:
    """Each stamp against the two kernels beside it."""
    events = profiler.profiler.kineto_results.events()
    sleeps = sorted((e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if "spin_kernel" in e.name())
    starts = {e.name(): e.start_ns() for e in events if e.name().startswith("host ")}
    facts: Facts = {"kernels": len(sleeps), "stamps": len(reads), "withheld": reads.count(None)}
    offs = [starts[f"host {n}"] - after for n, (_, after) in enumerate(hosts) if f"host {n}" in starts]
    facts["profiler's host clock, us after ours"] = summary([off / 1e3 for off in offs])
    if len(sleeps) != 2 * len(reads):
        facts["names"] = Counter(e.name()[:60] for e in events).most_common(12)
        return facts
    outside, gaps, wrong, middles = [], [], 0, []
    for number, (read, error) in enumerate(zip(reads, errors, strict=True)):
        end, begin = sleeps[2 * number][1], sleeps[2 * number + 1][0]
        gaps.append((begin - end) / 1e3)
        if read is None:
            continue
        distance = max(end - read, 0, read - begin)
        outside.append(distance / 1e3)
        middles.append((read - (end + begin) / 2) / 1e3)
        wrong += distance > (error or 0)
    facts |= {"gap us": summary(gaps), "outside us": summary(outside), "from middle us": summary(middles)}
    facts |= {"claimed error us": summary([e / 1e3 for e in errors if e is not None]), "outside claimed": wrong}
    return facts


def policy(rank: Rank) -> None:
    """A policy's steps against plain DDP's, its host waits, and whether all ranks end with one model."""
    import torch
    import torch.distributed as dist

    if not rank.is_cpu:
        cuda().set_device(0)
    rank.init_group()
    control = dist.new_group(backend="gloo")
    module = network(rank)
    plain = wrapped(rank, copy.deepcopy(module))
    inputs, optimizer = batches(rank), torch.optim.SGD(plain.parameters(), lr=0.01)
    train(plain, optimizer, inputs, WARM_UP_STEPS)
    before = ms_per_step(rank, lambda n: train(plain, optimizer, inputs, n), rank.steps)
    rank.report(plain_ms=round(before, 3))
    if rank.argument == "metered":
        rank.report(other_hook_ms=round(with_torchs_hook(rank, module, inputs), 3))
    with metered_job(rank, f"policy {rank.argument}") as (job, listener):
        ddp = wrapped(rank, module)
        run_policy(rank, job, ddp, inputs)
        after = ms_per_step(rank, lambda n: train(plain, optimizer, inputs, n), rank.steps)
        rank.report(plain_again_ms=round(after, 3), lost=job.meter.lost, own_us=round(job.meter.own_overhead_ns / 1e3))
        job.close()
        digests: list[Any] = [None] * rank.ranks
        dist.all_gather_object(digests, digest(ddp), group=control)
        rank.report(replicas_equal=len(set(digests)) == 1)
    rank.report(marks=marks_by_kind(listener.marks), is_done=True)


def with_torchs_hook(rank: Rank, module: nn.Module, inputs: Iterator[torch.Tensor]) -> float:
    """The same steps with torch's own hook in Python, which marks nothing."""
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    hooked = wrapped(rank, copy.deepcopy(module))
    hooked.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.SGD(hooked.parameters(), lr=0.01)
    train(hooked, optimizer, inputs, WARM_UP_STEPS)
    return ms_per_step(rank, lambda n: train(hooked, optimizer, inputs, n), rank.steps)


def run_policy(rank: Rank, job: Job, ddp: Any, inputs: Iterator[torch.Tensor]) -> None:
    import torch

    from timesyncd.client.torch import metered
    from timesyncd.training import synchronized

    optimizer, text = torch.optim.SGD(ddp.parameters(), lr=0.01), POLICIES[rank.argument]
    started, steady = HostWaits(rank), HostWaits(rank)
    with started.counting():
        handle: Any = metered(job, ddp, optimizer) if text is None else synchronized(job, ddp, optimizer, text)
        seen = handle.record_loss if text is not None else lambda loss: None
        train(ddp, optimizer, inputs, WARM_UP_STEPS, seen)
    rank.report(start=started.facts(WARM_UP_STEPS))
    took = ms_per_step(
        rank, lambda n: train(ddp, optimizer, inputs, n, seen), rank.steps * (3 if text == "auto" else 1)
    )
    rank.report(ms=round(took, 3), ratio=round(took / rank.facts["plain_ms"], 3))
    with steady.counting():
        train(ddp, optimizer, inputs, 24, seen)
    rank.report(steady=steady.facts(24))
    rank.wait_for_device()
    with rank.attempt("close"):
        handle.close()
        rank.report(close="ok")
    if text is not None:
        found = handle.report()
        rank.report(
            policy=found.policy,
            lssr=found.lssr,
            sync_ms=round(found.sync_ns / MS, 1),
            changes=[[change.step, change.policy, change.reason] for change in found.changes],
        )


def hooks(rank: Rank) -> None:
    """
    Each policy on NCCL, where CUDA makes it an error that the host waits in a backward pass. gloo's own threads wait for a device in each
    collective, so this cannot be asked there.
    """
    from timesyncd.training import synchronized

    cuda().set_device(0)
    rank.init_group("nccl")
    for name, text in POLICIES.items():
        if text is None:
            continue
        with rank.attempt(name), metered_job(rank, name) as (job, _):
            ddp = wrapped(rank, network(rank))
            inputs = batches(rank)
            optimizer = ddp_optimizer(ddp)
            with synchronized(job, ddp, optimizer, text) as sync:
                train(ddp, optimizer, inputs, 6, sync.record_loss)
                for _ in range(8):
                    batch = next(inputs)
                    loss = (ddp(batch) - batch).square().mean()
                    optimizer.zero_grad()
                    cuda().set_sync_debug_mode("error")
                    try:
                        loss.backward()
                    finally:
                        cuda().set_sync_debug_mode("default")
                    sync.record_loss(loss)
                    optimizer.step()
            rank.report(**{name: "no wait"})
    rank.report(is_done=True)


def ddp_optimizer(ddp: Any) -> torch.optim.Optimizer:
    import torch

    return torch.optim.SGD(ddp.parameters(), lr=0.01)


def straggler(rank: Rank) -> None:
    """Rank 1 is late in each step; what the marks of both ranks say of it."""
    import torch
    import torch.distributed as dist

    if not rank.is_cpu:
        cuda().set_device(0)
    rank.init_group()
    control = dist.new_group(backend="gloo")
    from timesyncd.client.torch import metered

    with metered_job(rank, f"straggler {rank.argument}") as (job, listener):
        ddp = wrapped(rank, network(rank))
        optimizer, inputs = torch.optim.SGD(ddp.parameters(), lr=0.01), batches(rank)
        train(ddp, optimizer, inputs, WARM_UP_STEPS)
        late = Slow(rank.argument, cycles_per_ms() if rank.rank == 1 and not rank.is_cpu else 0.0)
        if rank.rank == 1:
            ddp.module[2].register_forward_hook(late)
        meter = metered(job, ddp, optimizer)
        train(ddp, optimizer, inputs, rank.steps)
        rank.wait_for_device()
        train(ddp, optimizer, inputs, 2)  # in its steps the marks before it become known
        meter.close()
        lost = job.meter.lost
        job.close()
        listener.close()
    gathered: list[Any] = [None] * rank.ranks
    own = [(m.step, m.sync, m.kind, m.arrival_ns, m.begin_ns, m.end_ns) for m in listener.marks]
    dist.all_gather_object(gathered, own, group=control)
    rank.report(lost=lost, marks=marks_by_kind(listener.marks), **lateness(gathered))
    rank.report(slept_ms=late.slept_ms(), is_done=True)


def lateness(gathered: list[Any]) -> Facts:
    """By step, how much later rank 1 arrived than rank 0, where that is most; and how far the ends are apart."""
    from timesyncd.ipc.job_datagram import Kind

    of = [{mark[:3]: mark[3:] for mark in marks if mark[2] != Kind.STEP} for marks in gathered]
    late: defaultdict[int, list[float]] = defaultdict(list)
    apart = []
    for key in of[0].keys() & of[1].keys():
        late[key[0]].append((of[1][key][0] - of[0][key][0]) / MS)
        apart.append(abs(of[1][key][2] - of[0][key][2]) / MS)
    most = [max(values) for values in late.values()]
    return {"rank 1 late ms": summary(most), "ends apart ms": summary(apart), "expected ms": LATE_NS / MS}


def barriers(rank: Rank) -> None:
    """The client's barriers on the user's group."""

    from timesyncd.client.torch import barrier

    if not rank.is_cpu:
        cuda().set_device(0)
    rank.init_group()
    with metered_job(rank, "barriers") as (job, _):
        for name, is_fused in (("barrier", False), ("fused", True)):
            with rank.attempt(name):
                release = barrier(job, fused=is_fused)
                took = [_timed_us(lambda: release.wait(0)) for _ in range(20)]  # noqa: B023
                rank.report(**{name: {"us": summary(took)}})
    rank.report(is_done=True)


def _timed_us(call: Callable[[], object]) -> float:
    began = time.monotonic_ns()
    call()
    return (time.monotonic_ns() - began) / 1e3


def in_place(rank: Rank) -> None:
    """Parameters averaged by NCCL in their own memory, against the way through a flat copy: values, memory and time."""
    import torch
    from torch.distributed import distributed_c10d

    from timesyncd.training.torch.averaging import Averaging, DenseReducer

    cuda().set_device(0)
    rank.init_group("nccl")
    reducer = DenseReducer(distributed_c10d._get_default_group())
    for name in ("in place", "by a copy"):
        if name == "by a copy":
            setattr(DenseReducer, "takes_several", lambda *_: False)  # noqa: B010  mypy knows no such assignment
        tensors = [torch.ones(1 << 22, device=rank.device) for _ in range(16)]
        before = cuda().memory_allocated()
        averaging = Averaging(tensors, reducer)
        averaging.average(0.5)
        took = ms_per_step(rank, _repeated(averaging.average), 20)
        is_right = all(bool((tensor == 0.5).all()) for tensor in tensors)
        more = (cuda().memory_allocated() - before) >> 20
        rank.report(**{name: {"right": is_right, "more MiB": more, "ms": round(took, 3)}})
    rank.report(is_done=True)


def _repeated(call: Callable[[], object]) -> Callable[[int], None]:
    def run(times: int) -> None:
        for _ in range(times):
            call()

    return run


def graph(rank: Rank) -> None:
    """A step that is captured and replayed, with the meter on: it trains as without."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # torch's condition for the capture of a DDP module
    import torch

    cuda().set_device(0)
    rank.init_group("nccl")
    from timesyncd.client.torch import metered

    module = network(rank)
    losses = []
    for is_metered in (False, True):
        with metered_job(rank, f"graph {is_metered}") as (job, listener):
            side = cuda().Stream()
            with cuda().stream(side):
                ddp = wrapped(rank, copy.deepcopy(module))
                optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
                if is_metered:
                    metered(job, ddp, optimizer)
                static = next(batches(rank))
                train(ddp, optimizer, repeat(static), 11)
            cuda().synchronize()
            captured = cuda().CUDAGraph()
            with cuda().graph(captured):
                loss = (ddp(static) - static).square().mean()
                optimizer.zero_grad(set_to_none=False)
                loss.backward()
                optimizer.step()
            for _ in range(20):
                captured.replay()
            cuda().synchronize()
            losses.append(float(loss))
            rank.report(**{f"metered={is_metered}": {"loss": float(loss), "lost": job.meter.lost}})
        if is_metered:
            rank.report(marks=marks_by_kind(listener.marks))
    rank.report(same=losses[0] == losses[1], is_done=True)


def compiled(rank: Rank) -> None:
    """A compiled DDP module, metered."""
    import torch

    if not rank.is_cpu:
        cuda().set_device(0)
    rank.init_group("gloo" if rank.is_cpu else "nccl")
    from timesyncd.client.torch import metered

    with metered_job(rank, "compiled") as (job, listener):
        ddp = wrapped(rank, network(rank))
        model: Any = torch.compile(ddp)
        optimizer, inputs = torch.optim.SGD(ddp.parameters(), lr=0.01), batches(rank)
        meter = metered(job, model, optimizer)
        began = time.monotonic()
        train(model, optimizer, inputs, 3)
        rank.wait_for_device()
        rank.report(compile_s=round(time.monotonic() - began, 1))
        waits = HostWaits(rank)
        with waits.counting():
            train(model, optimizer, inputs, 20)
        rank.wait_for_device()
        train(model, optimizer, inputs, 2)
        meter.close()
        rank.report(lost=job.meter.lost, steady=waits.facts(20))
    rank.report(marks=marks_by_kind(listener.marks), is_done=True)


def fsdp2(rank: Rank) -> None:
    """Gathers and scatters of `fully_shard`, and how much of a step counts as waiting for them."""
    import torch
    from torch.distributed.fsdp import fully_shard

    from timesyncd.client.torch import metered

    if not rank.is_cpu:
        cuda().set_device(0)
    rank.init_group("nccl" if rank.ranks == 1 else None)
    with metered_job(rank, f"fsdp2 {rank.ranks}") as (job, listener):
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh(rank.device.type, (rank.ranks,))
        module = network(rank)
        for layer in module:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        optimizer, inputs = torch.optim.SGD(module.parameters(), lr=0.01), batches(rank)
        train(module, optimizer, inputs, 3)
        rank.report(bare_ms=round(ms_per_step(rank, lambda n: train(module, optimizer, inputs, n), 20), 3))
        meter = metered(job, module, optimizer)
        train(module, optimizer, inputs, 3)
        rank.report(metered_ms=round(ms_per_step(rank, lambda n: train(module, optimizer, inputs, n), 20), 3))
        train(module, optimizer, inputs, 2)
        meter.close()
        rank.report(lost=job.meter.lost)
    waited = sum(m.end_ns - m.begin_ns for m in listener.marks if m.kind in _fsdp_kinds())
    whole = sum(m.end_ns - m.arrival_ns for m in listener.marks if m.kind not in _fsdp_kinds())
    rank.report(waited_share=round(waited / max(1, whole), 3), marks=marks_by_kind(listener.marks), is_done=True)


def _fsdp_kinds() -> set[int]:
    from timesyncd.ipc.job_datagram import Kind

    return {int(Kind.ALL_GATHER), int(Kind.REDUCE_SCATTER)}


SECTIONS = {
    "machine": Section(machine, 1, 60, needs_card=False),
    "two_ranks": Section(two_ranks, 2, 40),
    "anchors": Section(anchors, 1, 40),
    "anchors:1": Section(anchors, 1, 40, argument="1"),
    "timestamps": Section(timestamps, 1, 60),
    "barriers": Section(barriers, 2, 45, needs_card=False),
    "straggler:device": Section(straggler, 2, 45, argument="device"),
    "straggler:host": Section(straggler, 2, 45, needs_card=False, argument="host"),
    "fsdp2:1": Section(fsdp2, 1, 45),
    "graph": Section(graph, 1, 45),
    "in_place": Section(in_place, 1, 40),
    "hooks": Section(hooks, 1, 45),
    **{f"policy:{name}": Section(policy, 2, 45, needs_card=False, argument=name) for name in POLICIES},
    "fsdp2:2": Section(fsdp2, 2, 45, needs_card=False),
    "compile": Section(compiled, 1, 75),
}


# --- the parent: starts the sections, and writes what they found


class Checked:
    """The sections' facts, written to the folder after each one."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._folder: Path = options.out
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = (self._folder / "log.txt").open("wb")
        self._ends = time.monotonic() + options.budget
        self.backend = "gloo" if options.cpu else "cuda:gloo"
        self.results: Facts = {}

    def run_all(self, names: Sequence[str]) -> None:
        for name in names:
            section = SECTIONS[name]
            if self._options.cpu and section.needs_card:
                continue
            left = self._ends - time.monotonic()
            began = time.monotonic()
            found = (
                self._run(name, section, min(section.deadline_s, left)) if left > 5 else {"error": "no time was left"}
            )
            self.results[name] = found | {"took_s": round(time.monotonic() - began, 1)}
            ranks: Any = found.get("ranks") or [{}]
            if name == "two_ranks" and all(each.get("works") for each in ranks):
                self.backend = "nccl"
            self._write()
            print(f"{name}: {'; '.join(_told(self.results[name]))}", flush=True)

    def _run(self, name: str, section: Section, limit_s: float) -> Facts:
        with tempfile.TemporaryDirectory() as folder:
            processes = [self._start(section, rank, Path(folder), name) for rank in range(section.ranks)]
            deadline, errors = time.monotonic() + limit_s, []
            for rank, process in enumerate(processes):
                try:
                    status = process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    status = None
                if status != 0:
                    what = f"was killed after {limit_s:.0f} s" if status is None else f"ended with {status}"
                    errors.append(f"rank {rank} {what}")
                    deadline = min(deadline, time.monotonic() + 3)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            logs = [(Path(folder) / f"{rank}.log").read_bytes() for rank in range(section.ranks)]
            for rank, log in enumerate(logs):
                self._log.write(f"\n==== {name}, rank {rank}\n".encode() + log[-40_000:])
            self._log.flush()
            facts: Facts = {"ranks": [_read_facts(Path(folder) / f"{rank}.json") for rank in range(section.ranks)]}
            if errors:
                facts["error"] = "; ".join(errors)
                facts["log"] = [log.decode(errors="replace").strip().splitlines()[-3:] for log in logs]
            return facts

    def _start(self, section: Section, rank: int, folder: Path, name: str) -> subprocess.Popen[bytes]:
        options = self._options
        command = [
            *(sys.executable, __file__, "--section", name, "--rank", str(rank), "--ranks", str(section.ranks)),
            *("--argument", section.argument, "--steps", str(options.steps), "--backend", self.backend),
            *("--facts", str(folder / f"{rank}.json"), "--rendezvous", str(folder / "rendezvous")),
            *(["--cpu"] if options.cpu else []),
        ]
        environ = os.environ | {
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            "NCCL_SOCKET_IFNAME": "lo",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONUNBUFFERED": "1",
        }
        with (folder / f"{rank}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)

    def _write(self) -> None:
        partial = self._folder / "result.part"
        partial.write_text(json.dumps({"backend": self.backend, "sections": self.results}, indent=1))
        partial.replace(self._folder / "result.json")


def _read_facts(path: Path) -> Facts:
    try:
        found: Facts = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _told(found: Facts) -> Iterator[str]:
    """One line of a section's facts, of rank 0."""
    if "error" in found:
        yield f"ERROR {found['error']}"
    first = (found.get("ranks") or [{}])[0]
    for name in ("ms", "ratio", "close", "replicas_equal", "lost", "rank 1 late ms", "waited_share", "same", "works"):
        if name in first:
            yield f"{name}={first[name]}"
    for when in ("start", "steady"):
        if when in first:
            yield f"{when} reads={first[when]['reads_per_step']} warned={first[when]['warned_per_step']}"
    yield f"{found['took_s']} s"


def run_section(options: argparse.Namespace) -> NoReturn:
    """In a process of its own. It ends without the exit handlers: a group that another rank has left would hold it there."""
    status = 1
    try:
        SECTIONS[options.section].run(Rank(options))
        status = 0
    except Exception:  # noqa: BLE001  the parent reports it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", "gpu-check")), help="folder of the results"
    )
    parser.add_argument("--cpu", action="store_true", help="the part that needs no card")
    parser.add_argument("--budget", type=float, default=300, help="seconds for all sections together")
    parser.add_argument("--steps", type=int, default=40, help="timed steps of a policy")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of: %(default)s")
    for name in ("--section", "--argument", "--backend", "--rendezvous"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--facts", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.section:
        run_section(options)
    checked = Checked(options)
    checked.run_all(options.sections.split(","))
    return 1 if any("error" in found for found in checked.results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
