"""Whatever comes in, a parser gives a value or its own error: property tests, which `make properties` runs for longer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire import cloud_event, grandmaster, history, hub_state, marks, node_state, stored

from timesyncd import config
from timesyncd.driver import options_of
from timesyncd.drivers.timeprovider._assemble import assemble
from timesyncd.drivers.timeprovider._decoders import DECODERS, KINDS, Unknown
from timesyncd.drivers.timeprovider._notifications import NotificationDecoder
from timesyncd.drivers.timeprovider._profiles import SHIPPED, load
from timesyncd.errors import ConfigError, Malformed
from timesyncd.ipc import clock_segment
from timesyncd.messages.node import AlarmEventMessage, GrandmasterState, Message, grandmaster_state
from timesyncd.mqtt.topics import CHANNELS, MqttChannel, channel_of, decode, encode, parse_topic
from timesyncd.sample import Trap
from timesyncd.snmp.values import Index, Oid, Raw

PROFILES = [load(name) for name in SHIPPED]
OIDS = sorted({entry.oid for profile in PROFILES for entry in profile.object})

raws: st.SearchStrategy[Raw] = st.one_of(
    st.integers(),
    st.integers(0, 300),
    st.binary(max_size=300),
    st.from_regex(rb"[ <+-]{0,2}[0-9]{1,12}(\.[0-9]{1,9})? ?(ns|us|0x[0-9a-f]{2})?", fullmatch=True),
    st.from_regex(r"1(\.[0-9]{1,4}){1,9}", fullmatch=True),
)
indices = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=3).map(tuple)
rows = st.dictionaries(st.sampled_from(OIDS), st.dictionaries(indices, raws, max_size=4), max_size=12)


@given(st.sampled_from(sorted(DECODERS)), raws, st.dictionaries(st.integers(0, 9), st.text(max_size=9)))
def test_a_decoder_takes_any_value_of_an_agent(name: str, raw: Raw, values: dict[int, str]) -> None:
    """A value, `Unknown`, or Malformed; text never carries a control character."""
    try:
        value = DECODERS[name](raw, values)
    except Malformed:
        return

    assert isinstance(value, KINDS[name] | Unknown)
    assert name != "text" or str(value).isprintable()


@given(rows)
def test_any_answers_of_an_agent_make_a_message_or_are_malformed(served: dict[Oid, dict[Index, Raw]]) -> None:
    """What can be assembled can be published too: no number off the wire overflows a message."""
    try:
        sample = assemble("gm-a", 1, PROFILES, served)
    except Malformed:
        return
    state = grandmaster_state(
        sample, node="n", incarnation=1, sequence=1, name="gm-a", published_realtime_ns=1, age_ns=0, reachable=True
    )

    assert GrandmasterState.model_validate_json(state.model_dump_json()) == state


NOTIFICATIONS = [entry.oid for profile in PROFILES for entry in profile.notification]
VARIABLES = [oid for profile in PROFILES for entry in profile.notification for oid in entry.variables.values()]
tails = st.lists(st.integers(0, 200), max_size=2).map(tuple)
traps = st.builds(
    Trap,
    address=st.just("192.0.2.1"),
    boottime_ns=st.just(1),
    oid=st.builds(lambda oid, tail: oid + tail, st.sampled_from(NOTIFICATIONS), tails),
    uptime_ticks=st.none() | st.integers(0, 2**32 - 1),
    variables=st.lists(
        st.tuples(st.builds(lambda oid, tail: oid + tail, st.sampled_from(VARIABLES), tails), raws), max_size=9
    ).map(tuple),
)


@given(st.lists(traps, max_size=4))
def test_any_notification_makes_an_alarm_event(sent: list[Trap]) -> None:
    """Whatever a grandmaster sends by itself is an event that can be published, or a repetition."""
    notifications = NotificationDecoder("gm-a", PROFILES)
    for event in filter(None, map(notifications.event, sent)):
        AlarmEventMessage(
            node="n",
            incarnation=1,
            sequence=1,
            name=event.source,
            published_realtime_ns=1,
            action=event.action,
            id=event.id,
            index=event.index,
            severity=event.severity,
            text=event.text,
            alarm_sequence=event.sequence,
            lost=event.lost,
            at=event.at,
        )

        assert event.text.isprintable()


@given(st.text(max_size=80) | st.from_regex(r"<164>host alarmd: [0-9]{3},[0-9]{1,12},\w{3,6},.{0,9}", fullmatch=True))
def test_any_line_makes_an_alarm_event_or_none(line: str) -> None:
    """A syslog message from any sender raises no exception."""
    event = NotificationDecoder("gm-a", PROFILES).event_of_line(line, 1)

    assert event is None or event.text.isprintable()


@given(
    st.text(max_size=60), st.sampled_from(["node", "grandmaster", "job", ""]), st.sampled_from(["state", "marks", ""])
)
def test_any_topic_is_located_or_malformed(subject: str, scope: str, leaf: str) -> None:
    """A topic of ours leads to a channel, and any other is refused."""
    topic = f"{config.TOPIC_PREFIX}/{scope}/{subject}/{leaf}"
    try:
        channel, found = parse_topic(config.TOPIC_PREFIX, topic)
    except Malformed:
        return

    assert channel.topic(config.TOPIC_PREFIX, found) == topic


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-9, 9), st.floats(), st.text(max_size=20), st.just("node")
)
#: What JSON and TOML can express.
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)
MESSAGES: list[Message] = [
    node_state(),
    grandmaster("n1", 1, 1),
    marks(1),
    cloud_event(),
    history(),
    stored(),
    hub_state("n1"),
]


@given(st.sampled_from(CHANNELS), st.binary(max_size=200))
def test_any_payload_is_decoded_or_malformed(channel: MqttChannel, payload: bytes) -> None:
    """Octets that no timesyncd wrote raise nothing but Malformed."""
    try:
        decode(channel, "n1", payload)
    except Malformed:
        pass


@given(st.sampled_from(MESSAGES), st.data())
def test_a_message_with_one_wrong_value_is_decoded_or_malformed(message: Message, data: st.DataObject) -> None:
    """The same one value off, where the fields' own checks are reached; what is taken can be sent on."""
    fields = message.model_dump(mode="json")
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(trees)
    channel = channel_of(type(message))
    try:
        taken = decode(channel, "n1", json.dumps(fields).encode())
    except Malformed:
        return

    assert decode(channel, "n1", encode(taken)) == taken


FILE: dict[str, Any] = {
    "node": {"name": "a", "runtime_dir": "/run/t"},
    "source": [{"name": "s", "driver": "ptp4l", "domain": 0, "bounds": {"local_drift_ppb": 1, "void_after_ns": 9}}],
    "grandmaster": [{"name": "g", "driver": "timeprovider", "host": "h", "community": {"env": "E"}}],
    "mqtt": {"host": "h", "password": {"file": "/f"}, "state_every_s": 1.0},
    "store": {"path": "/p", "keep_days": 7},
    "web": {"host": "::1", "port": 1},
    "hub": {"nodes": ["a"], "window_steps": 9},
}


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    own = list(tree) if isinstance(tree, dict) else list(range(len(tree))) if isinstance(tree, list) else []
    return [(tree, key) for key in own] + [place for key in own for place in places(tree[key])]


@given(st.data())
def test_a_file_with_one_wrong_value_is_accepted_or_rejected_in_one_line(data: st.DataObject) -> None:
    """One value of a good file is replaced, or a key added: a configuration, or ConfigError in one line."""
    tree = json.loads(json.dumps(FILE))
    container, key = data.draw(st.sampled_from(places(tree)))
    if isinstance(container, dict) and data.draw(st.booleans()):
        key = data.draw(st.text(max_size=9))
    container[key] = data.draw(trees)
    try:
        config.parse(tree, options_of, "t.toml")
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 30), max_size=clock_segment.WORD_COUNT + 1))
def test_any_words_are_a_bound_or_no_segment_of_ours(words: list[int]) -> None:
    """A reader meets nothing but ValueError, whatever a segment holds."""
    full = words + [0] * (clock_segment.WORD_COUNT - len(words))
    try:
        bound, epoch = clock_segment.decode(full)
    except ValueError:
        return

    assert clock_segment.decode(clock_segment.encode(bound, epoch)) == (bound, epoch)


@pytest.mark.parametrize("word", [2**63 - 1, -(2**63) + 1])
def test_extreme_words_are_read(word: int) -> None:
    """The largest numbers of a word are numbers like any other."""
    words = [word if index in (3, 4, 12, 30) else 1 for index in range(clock_segment.WORD_COUNT)]
    bound, _ = clock_segment.decode(words)

    assert (bound.as_of_ns, bound.real_minus_boot_ns, bound.parent_hard.bound_ns) == (word, word, word)
