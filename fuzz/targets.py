"""
What is fuzzed: each parser of octets that come from outside, with valid inputs to begin from, and a whole hub.

A target takes any octets. What its parser reports as bad is expected; every other exception is a fault.
"""

from __future__ import annotations

import json
import struct
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "support"), str(Path(__file__).parent)]

import whole_hub
from batches import batch, mark
from grandmaster_states import follower, polled_grandmaster
from trace_files import anchor, events, owner
from wire import cloud_event, history, hub_state, stored

from timesyncd import config
from timesyncd.bound import ClockStatus
from timesyncd.driver import options_of
from timesyncd.drivers.chrony import _protocol as chrony
from timesyncd.drivers.kernel import _machine as kernel
from timesyncd.drivers.phc import _device as phc_device
from timesyncd.drivers.phc import _ioctl as phc
from timesyncd.drivers.ptp4l import _event_monitor as ptp4l_events
from timesyncd.drivers.ptp4l import _management as ptp4l
from timesyncd.drivers.timeprovider import _web_codec as web
from timesyncd.drivers.timeprovider._notifications import NotificationDecoder
from timesyncd.drivers.timeprovider._profiles import SHIPPED
from timesyncd.drivers.timeprovider._profiles import load as load_profile
from timesyncd.errors import ConfigError, TimesyncdError
from timesyncd.ipc import clock_segment, clockbound, job_datagram, network_record, tcp_info
from timesyncd.logs import reading as logs
from timesyncd.messages.node import Message
from timesyncd.model.leap import parse_leap_seconds
from timesyncd.model.replay import read_trace
from timesyncd.mqtt.packets import PacketSplitter, parse_publish
from timesyncd.mqtt.topics import CHANNELS, channel_of, decode, encode
from timesyncd.snmp import ber, messages, security
from timesyncd.traces import anchors, flight_recorder, nccl_inspector, pipeline_timeline, profiler_trace, reader
from timesyncd.training.policy.text import parse_policy

RECORDINGS = ROOT / "tests" / "recordings"
LINES = 2_000


@dataclass(frozen=True)
class Target:
    """`run` parses octets; `seeds` are inputs that it takes; `rejects` are the errors by which it reports bad ones."""

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    rejects: tuple[type[Exception], ...] = (TimesyncdError,)

    def __call__(self, data: bytes) -> bool:
        """Whether the input was taken; False: it was reported as bad."""
        try:
            self.run(data)
        except self.rejects:
            return False
        return True


def _snmp(data: bytes) -> object:
    _, inside = messages.parse(data)
    return messages.decode_pdu(inside)


def _snmp_seeds() -> Iterator[bytes]:
    oid = (1, 3, 6, 1, 2, 1, 1, 3, 0)
    values = [messages.Varbind(oid, 0x43, 70_000), messages.Varbind(oid, 4, b"text"), messages.Varbind(oid, 5, None)]
    response = messages.Pdu(messages.PduType.RESPONSE, 1, 0, 0, values)
    yield messages.message(b"public", messages.encode_pdu(response))
    yield messages.message(b"public", messages.encode_request(messages.PduType.GET_BULK, 2, [oid, oid], 10))


def _snmp_v3_seeds() -> Iterator[bytes]:
    """An unsigned message (RFC 3412 section 6, RFC 3414 section 2.4): header, security parameters, scoped PDU."""
    integer, octets, sequence = ber.encode_integer, ber.OCTETS, ber.SEQUENCE
    header = integer(7) + integer(65_507) + ber.encode(octets, b"\x04") + integer(3)
    empty = ber.encode(octets, b"")
    parameters = ber.encode(octets, b"\x80\x00\x00\x01\x02") + integer(1) + integer(2) + empty * 3
    scoped = empty * 2 + messages.encode_request(messages.PduType.GET, 7, [])
    wrapped = ber.encode(octets, ber.encode(sequence, parameters))
    body = integer(3) + ber.encode(sequence, header) + wrapped + ber.encode(sequence, scoped)
    yield ber.encode(sequence, body)


def _ptp4l_seeds() -> Iterator[bytes]:
    for path in sorted((RECORDINGS / "ptp4l").glob("*.json")):
        found = json.loads(path.read_text())
        yield from (bytes.fromhex(text) for text in found.get("replies", found).values() if isinstance(text, str))


def _event_seeds() -> Iterator[bytes]:
    for path in sorted((RECORDINGS / "ptp4l").glob("*.json")):
        yield from map(bytes.fromhex, json.loads(path.read_text()).get("events", {}).values())


def _chrony_seeds() -> Iterator[bytes]:
    found = json.loads((RECORDINGS / "chrony" / "chronyd_4.3.json").read_text())
    yield from (bytes.fromhex(text) for text in found.values() if isinstance(text, str))


def _clockbound(data: bytes) -> object:
    clockbound.parse_header(data[:16], "")
    return clockbound.parse_content(data[16:80], "")


def _clockbound_seeds() -> Iterator[bytes]:
    header = struct.pack("=IIIHH", 0x414D5A4E, 0x43420200, 80, 2, 4)
    yield header + struct.pack("=4qqQIiB7x", 1_000, 0, 2_000, 0, 12_345, 7, 50_000, 1, 1)


def _timex(data: bytes) -> object:
    return kernel.parse(data[:_TIMEX].ljust(_TIMEX, b"\0"), 0)


_TIMEX = kernel._TIMEX.size


def _phc_windows(data: bytes) -> object:
    """The first octet chooses the ioctl."""
    request = phc.OFFSET_IOCTLS[data[0] % 3] if data else phc.PhcIoctl.BASIC
    size = phc._SIZES[request]
    return phc.windows(request, data[1:].ljust(size, b"\0")[:size])


def _words(data: bytes) -> object:
    count = clock_segment.WORD_COUNT
    padded = data[: 8 * count].ljust(8 * count, b"\0")
    words = [int.from_bytes(padded[at : at + 8], "little", signed=True) for at in range(0, 8 * count, 8)]
    bound, epoch = clock_segment.decode(words)
    assert clock_segment.decode(clock_segment.encode(bound, epoch)) == (bound, epoch)
    return bound


def _mqtt_payload(data: bytes) -> object:
    """The first octet chooses the kind of message. What is taken can be sent on."""
    if not data:
        return None
    channel = CHANNELS[data[0] % len(CHANNELS)]
    taken = decode(channel, "n1", data[1:])
    assert decode(channel, "n1", encode(taken)) == taken
    return taken


MESSAGES: tuple[Message, ...] = (
    follower("n1"),
    polled_grandmaster("n1"),
    batch(0, mark(0)),
    cloud_event(),
    history(),
    stored(),
    hub_state("n1"),
)


def _mqtt_payload_seeds() -> Iterator[bytes]:
    for message in MESSAGES:
        yield bytes([CHANNELS.index(channel_of(type(message)))]) + encode(message)


def _mqtt_packets(data: bytes) -> object:
    splitter = PacketSplitter(1 << 20)
    half = len(data) // 2
    packets = [*splitter.split(data[:half]), *splitter.split(data[half:])]
    return [parse_publish(packet) for packet in packets if packet.type == 3]


def _mqtt_packet_seeds() -> Iterator[bytes]:
    yield bytes.fromhex("300d00056e2f6f6e6500") + b"hello"
    yield bytes.fromhex("320f00056e2f6f6e65000700") + b"hello"


def _toml(data: bytes) -> object:
    try:
        tree = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError("not TOML") from error
    return config.parse(tree, options_of, "fuzzed.toml")


def _toml_seeds() -> Iterator[bytes]:
    yield b'[node]\nname = "a"\n[[source]]\nname = "s"\ndriver = "ptp4l"\n[source.bounds]\nlocal_drift_ppb = 1\n'
    yield b'[node]\nname = "a"\n[mqtt]\nhost = "broker"\n[hub]\nnodes = ["a"]\n[web]\nport = 8319\n[store]\nkeep_days = 7\n'


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _log(data: bytes) -> object:
    lines = _text(data).splitlines()[:LINES]
    kind, rest = logs.peek_kind(iter(lines))
    if kind is None or kind is logs.LogFormat.CSV:
        return list(islice(read_trace(rest, "log"), LINES))
    report, rows = logs.read_log(rest, "log", kind)
    return report, list(rows)


def _log_seeds() -> Iterator[bytes]:
    for path in sorted((RECORDINGS / "logs").glob("*.log")):
        yield b"\n".join(path.read_bytes().splitlines()[:60]) + b"\n"


def _syslog(data: bytes) -> object:
    return NotificationDecoder("gm-a", [load_profile(name) for name in SHIPPED[:1]]).event_of_line(_text(data), 1)


def _profiler(data: bytes) -> object:
    return profiler_trace.read_profiler_trace(reader.read_trace(iter([_text(data)]), "trace"), "rank0.json")


def _profiler_seeds() -> Iterator[bytes]:
    yield json.dumps({"traceEvents": events(0)[:12], "distributedInfo": {"rank": 0, "world_size": 2}}).encode()


def _pipeline(data: bytes) -> object:
    return pipeline_timeline.read_pipeline_timeline(reader.read_trace(iter([_text(data)]), "trace"), "timeline.json")


def _inspector_seeds() -> Iterator[bytes]:
    perf = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 2_048, "coll_exec_time_us": 10}
    head = {"id": "0x1", "rank": 0, "n_ranks": 2, "nnodes": 1}
    record = {"header": head, "metadata": {"hostname": "node-0", "pid": 7}, "coll_perf": perf}
    yield json.dumps(record).encode() + b"\n"
    times = {"kernel_start_ts": 10**15, "kernel_stop_ts": 10**15 + 10, "kernel_record_ts": 10**15 + 10, "channel_id": 0}
    traced = {"coll_start_ts": 10**15, "coll_stop_ts": 10**15 + 5, "kernel_events": [times]}
    yield json.dumps(record | {"coll_perf": perf | {"event_trace_ts": traced}}).encode() + b"\n"


def _anchor_seeds() -> Iterator[bytes]:
    head = {"format": "timesyncd anchors", "version": 1} | asdict(owner(0))
    yield b"".join(json.dumps(each).encode() + b"\n" for each in (head, asdict(anchor(1, 0.0)), asdict(anchor(2, 2.0))))


def _datagram_seeds() -> Iterator[bytes]:
    header = job_datagram.Header(
        job="train", attempt=0, rank=0, world_size=2, node="n1", boot_id=7, time_namespace=1, real_minus_boot_ns=10**18,
        status=ClockStatus.SYNCHRONIZED, gm_bound_ns=1_000, utc_bound_ns=None, utc_seconds_removed=37,
        grandmaster_identity="000001.fffe.000001", lost=0, joined_ns=10**12, past_growth_ppb=500_000,
    )  # fmt: skip
    marks = bytearray(job_datagram.MARK_SIZE)
    job_datagram.pack_mark(marks, 0, 1, 0, job_datagram.Kind.BARRIER, 10**12, 10**12, 10**12, 0)
    yield job_datagram.encode_header(header, 1) + bytes(marks)


def _network_seeds() -> Iterator[bytes]:
    here, there = network_record.Endpoint("10.0.0.1", 1), network_record.Endpoint("10.0.0.2", 2)
    counters = {"eth0": dict.fromkeys(network_record.COUNTERS, 1)}
    connection = network_record.Connection(here, there, tcp_info.parse_tcp_info(b"\1" + b"\0" * 279))
    packing = {network_record.PackingPart.HOOKS: network_record.PackingTime(1, 2)}
    record = network_record.NetworkRecord(1, 2, {"10.0.0.1": "eth0"}, counters, counters, (connection,), packing)
    yield network_record.encode_network(record)


TARGETS = [
    Target("snmp message", _snmp, _snmp_seeds),
    Target("snmp v3 message", security.parse, _snmp_v3_seeds),
    Target("ptp4l management", lambda data: ptp4l.parse(data).content(), _ptp4l_seeds),
    Target("ptp4l event", ptp4l_events.parse_event, _event_seeds),
    Target("chrony reply", chrony.parse, _chrony_seeds),
    Target("clockbound segment", _clockbound, _clockbound_seeds),
    Target("kernel timex", _timex, lambda: [b"\0" * _TIMEX]),
    Target("phc windows", _phc_windows, lambda: [b"\0" * 65, b"\1" + struct.pack("=I", 1) + b"\0" * 60]),
    Target("phc index", phc_device.parse_phc_index, lambda: [b"\0" * 44]),
    Target("grandmaster channels", web.parse_channels, lambda: [b"[]"]),
    Target("grandmaster chart", web.parse_chart, lambda: [b'{"chartData": []}']),
    Target("grandmaster history", web.parse_history, lambda: [b"# header\n"]),
    Target("grandmaster syslog", _syslog, lambda: [b"<164>host alarmd: 001,1,raise,GNSS lost"]),
    Target("clock segment", _words, lambda: [b"\0" * 8 * clock_segment.WORD_COUNT], (ValueError,)),
    Target("job datagram", job_datagram.decode, _datagram_seeds),
    Target("tcp info", tcp_info.parse_tcp_info, lambda: [b"\1" + b"\0" * 279, b"\1" + b"\0" * 103]),
    Target("network record", network_record.parse_network, _network_seeds, (ValueError,)),
    Target("mqtt payload", _mqtt_payload, _mqtt_payload_seeds),
    Target("mqtt packets", _mqtt_packets, _mqtt_packet_seeds),
    Target("configuration", _toml, _toml_seeds),
    Target("leap seconds", lambda data: parse_leap_seconds(_text(data)), lambda: [b"#@ 3991593600\n2272060800 10\n"]),
    Target("logs", _log, _log_seeds),
    Target("profiler trace", _profiler, _profiler_seeds),
    Target("pipeline timeline", _pipeline, lambda: [b'{"traceEvents": []}']),
    Target("nccl inspector", lambda data: nccl_inspector.read_inspector_log(data, "log"), _inspector_seeds),
    Target(
        "flight recorder",
        lambda data: flight_recorder.read_flight_recorder(data, "trace_0"),
        lambda: [b'{"version": "2.10", "pg_config": {}, "entries": []}'],
    ),
    Target("anchors", lambda data: anchors.read_anchors(_text(data).splitlines(keepends=True), "a"), _anchor_seeds),
    Target("whole hub", whole_hub.run, whole_hub.seeds, ()),
    Target(
        "policy text",
        lambda data: parse_policy(_text(data)),
        lambda: [b"selsync(delta=0.1)", b"local_sgd(h=8)"],
        (ValueError,),
    ),
]
