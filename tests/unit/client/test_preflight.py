"""Preflight, asked of a server that answers as a hub does, or as none should."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from fake_hub import FakeHub, aligned, hub_state, node, page, serving

from timesyncd.client import PreflightReason, PreflightResult, preflight
from timesyncd.client.preflight_check import NEVER_REPORTED
from timesyncd.messages.node import StateReason

TOKEN = "a-token-of-the-tests"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def other() -> Iterator[FakeHub]:
    with serving() as hub:
        yield hub


def ask(hub: FakeHub, **changes: Any) -> PreflightResult:
    wanted: dict[str, Any] = {"nodes": ["a", "b"], "max_alignment_ns": 1_000, "timeout_s": 0.0, "url": hub.url}
    return preflight(**wanted | changes)


def test_clocks_that_agree_pass(hub: FakeHub) -> None:
    """The alignment, by what the clocks were compared, and each node."""
    hub.agree(400)
    answer = ask(hub)

    assert (answer.ok, answer.alignment_ns, answer.reason, answer.pair) == (True, 400, "one grandmaster", ("a", "b"))
    assert [(each.node, each.status, each.bound_ns) for each in answer.nodes] == [
        ("a", "SYNCHRONIZED", 200),
        ("b", "SYNCHRONIZED", 200),
    ]


@pytest.mark.parametrize(("alignment_ns", "ok"), [(1_000, True), (1_001, False)])
def test_the_limit_itself_is_allowed(hub: FakeHub, alignment_ns: int, ok: bool) -> None:
    """To the nanosecond, and a reason never shows two equal numbers."""
    hub.agree(alignment_ns)
    answer = ask(hub)

    assert answer.ok is ok
    assert answer.reason == ("one grandmaster" if ok else "a and b may be 1001 ns apart; 1 us is allowed")
    assert answer.reason_code is (PreflightReason.OK if ok else PreflightReason.TOO_FAR_APART)


def test_the_alignment_is_grown_to_the_answer(hub: FakeHub) -> None:
    """An old copy counts with its age: a second of 1 us a second is more than is allowed."""
    hub.agree(400, growth_ppb=1_000, published_realtime_ns=time.time_ns() - 1_000_000_000)
    answer = ask(hub)

    assert not answer.ok
    assert answer.alignment_ns is not None and answer.alignment_ns >= 1_400


def test_a_copy_from_a_clock_ahead_is_as_old_as_the_question(hub: FakeHub) -> None:
    """A hub whose clock is ahead makes nothing younger than it is."""

    def late(_: object) -> tuple[int, object]:
        ahead = aligned(400, growth_ppb=10_000, published_realtime_ns=time.time_ns() + 10**12)
        time.sleep(0.05)
        return 200, ahead

    hub.answers["/api/v1/alignment"] = late
    answer = ask(hub)

    assert answer.alignment_ns is not None and answer.alignment_ns >= 900


def test_what_no_longer_holds_is_unknown(hub: FakeHub) -> None:
    """Beyond the time for which the hub vouches, its number is none."""
    hub.agree(400, holds_for_ns=10**9, published_realtime_ns=time.time_ns() - 2 * 10**9)
    answer = ask(hub)

    assert (answer.ok, answer.alignment_ns) == (False, None)
    assert answer.reason.endswith("its response is 2 s old, by the clocks here and there, and has expired")
    assert answer.reason_code is PreflightReason.RESPONSE_EXPIRED


def test_a_node_that_fails_is_named_with_its_reason(hub: FakeHub) -> None:
    """Of nodes that fail the first three, and how many more."""
    nodes = [node(f"n{n}", None, "silent").model_dump() for n in range(5)] + [node("good").model_dump()]
    hub.agree(None, nodes=nodes)
    answer = ask(hub, nodes=["good", *(f"n{n}" for n in range(5))])

    assert not answer.ok
    assert answer.reason == "n0: silent; n1: silent; n2: silent; and 2 more"


def test_a_node_that_never_reported_fails_by_name(hub: FakeHub) -> None:
    """It fails also if the hub's response leaves it out and has an alignment."""
    hub.agree(400, names="a,b")
    answer = ask(hub, nodes=["a", "b", "typo"])

    assert (answer.ok, answer.alignment_ns, answer.reason) == (
        False,
        None,
        "typo: has never reported to this hub",
    )
    assert answer.reason_code is PreflightReason.NODE_UNKNOWN
    assert (answer.nodes[0].node, answer.nodes[0].reason_code) == ("typo", StateReason.NODE_NEVER_REPORTED.value)
    assert answer.nodes[0].reason == NEVER_REPORTED


@pytest.mark.parametrize("names", ["a", "a,b"])
def test_an_alignment_beside_a_node_without_a_bound_is_ignored(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    """One clock always agrees with itself: the query is repeated until the timeout, then the node fails by name."""
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_INTERVAL_S", 0.01)
    nodes = [node(name, None if name == "a" else 200, "the clock is UNKNOWN").model_dump() for name in names.split(",")]
    hub.agree(0, names=names, nodes=nodes)
    waited: list[str] = []
    answer = ask(hub, nodes=names.split(","), timeout_s=0.5, on_wait=lambda so_far: waited.append(so_far.reason))

    assert (answer.ok, answer.alignment_ns, answer.reason) == (False, None, "a: the clock is UNKNOWN")
    assert set(waited) == {"a: the clock is UNKNOWN"}


def test_a_job_without_nodes_fails(hub: FakeHub) -> None:
    """An empty set of nodes is no set of clocks that agree."""
    hub.agree(0, names="a", nodes=[], reason="no such nodes")
    answer = ask(hub, nodes=None, job="0123456789abcdef")

    assert (answer.ok, answer.alignment_ns, answer.reason) == (False, None, "no such nodes")


def test_a_job_is_asked_for_as_it_is_named(hub: FakeHub) -> None:
    """The hub decides whether it is a name or an id, since the caller may not be allowed to list jobs."""
    seen = []

    def asked(query: dict[str, list[str]]) -> tuple[int, object]:
        seen.append(query["job"])
        return (404, {"error": "unknown job 'typo'"}) if query["job"] == ["typo"] else (200, aligned(400))

    hub.answers["/api/v1/alignment"] = asked
    answers = [ask(hub, nodes=None, job=job) for job in ("llm", "f" * 16)]
    unknown = ask(hub, nodes=None, job="typo")

    assert [answer.ok for answer in answers] == [True, True]
    assert seen[:2] == [["llm"], ["f" * 16]]
    assert unknown.reason == f"{hub.url}: unknown job 'typo'"


def test_of_a_large_set_the_worst_are_listed(hub: FakeHub) -> None:
    """A hub lists a hundred nodes: those that it does not list are not worse, and have reported."""
    names = [f"n{index}" for index in range(150)]
    answer = aligned(400)
    answer["nodes"] = [
        {"node": name, "status": "SYNCHRONIZED", "bound_ns": 200, "reason_code": "ok", "reason": ""}
        for name in names[:100]
    ]
    hub.answers["/api/v1/alignment"] = (200, answer)

    assert ask(hub, nodes=names).ok


def test_it_waits_while_unknown_and_ends_at_once_when_good(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alignment of a node that just started is queried until it is known, with a call of `on_wait` each time."""
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_INTERVAL_S", 0.01)
    answers = iter([None, None, 400, None])
    hub.answers["/api/v1/alignment"] = lambda _: (200, aligned(next(answers)))
    waited: list[str] = []
    answer = ask(hub, timeout_s=60.0, on_wait=lambda so_far: waited.append(so_far.reason))

    assert answer.ok
    assert waited == ["a: no message for 12 s; b: no message for 12 s"] * 2
    assert next(answers) is None


def test_clocks_too_far_apart_are_not_asked_again(hub: FakeHub) -> None:
    """That is an answer: waiting would only let the bounds' ups and downs decide."""
    hub.agree(5_000)
    answer = ask(hub, timeout_s=60.0)

    assert answer.reason == "a and b may be 5.00 us apart; 1 us is allowed"
    assert [path for path, _ in hub.asked] == ["/api/v1/alignment"]


def test_at_the_timeout_the_last_reason_is_returned(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it was asked more than once until then."""
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_INTERVAL_S", 0.02)
    hub.agree(None)
    answer = ask(hub, timeout_s=0.2)

    assert (answer.ok, answer.reason) == (False, "a: no message for 12 s; b: no message for 12 s")
    assert len([path for path, _ in hub.asked if path.endswith("alignment")]) > 1


def test_a_daemon_that_knows_hubs_leads_to_the_primary(hub: FakeHub, other: FakeHub) -> None:
    """A node that is not a hub knows no other node; the primary hub is asked before the second one."""
    hub.agree(None, names="a")
    hub.answers["/api/v1/hubs"] = (
        200,
        page(hub_state("h1", hub.url + "dead"), hub_state("h2", other.url, primary=True)),
    )
    hub.answers["/api/v1/node"] = (200, {"node": "a"})
    other.agree(400)
    answer = ask(hub)

    assert (answer.ok, answer.url) == (True, other.url)


def test_the_second_hub_answers_for_a_dead_one(hub: FakeHub, other: FakeHub) -> None:
    """The primary's page does not answer; the other has the same numbers."""
    hub.agree(None, names="a")
    dead = hub_state("h1", "http://127.0.0.1:9/", primary=True)
    hub.answers["/api/v1/hubs"] = (200, page(hub_state("h2", other.url), dead))
    other.agree(400)

    assert ask(hub).url == other.url


def test_a_hub_s_own_word_is_the_last(hub: FakeHub, other: FakeHub) -> None:
    """Who is asked is a hub itself: no other one knows better."""
    hub.agree(None)
    hub.answers["/api/v1/node"] = (200, {"node": "h1"})
    hub.answers["/api/v1/hubs"] = (200, page(hub_state("h1", "http://h1/"), hub_state("h2", other.url, primary=True)))
    answer = ask(hub)

    assert (answer.alignment_ns, other.asked) == (None, [])


def test_the_token_is_shown(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As given, else that of the environment."""
    hub.agree()
    ask(hub, token=TOKEN)
    monkeypatch.setenv("TIMESYNCD_TOKEN", "of-the-environment")
    ask(hub)

    assert [shown for _, shown in hub.asked] == [f"Bearer {TOKEN}", "Bearer of-the-environment"]


def test_a_hub_that_the_daemon_named_gets_no_token_in_clear(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address came over the broker: the token is sent to another machine only over TLS, and the reason states how else."""
    shown: list[tuple[str, str | None]] = []

    def asked(url: str, token: str | None, timeout_s: float) -> tuple[int, Any]:
        if url.startswith(hub.url):
            return 200, hubs if url.endswith("hubs") else aligned(None, "a")
        shown.append((url.partition("/api")[0], token))
        return (401, {"error": "credentials required"}) if url.startswith("http:") else (200, aligned(400))

    monkeypatch.setattr("timesyncd.client.preflight_check.get_json", asked)
    hubs = page(hub_state("h1", "http://h1:8319/"))
    in_clear = ask(hub, token=TOKEN)
    hubs = page(hub_state("h1", "https://h1:8319/"))
    over_tls = ask(hub, token=TOKEN)

    assert shown == [("http://h1:8319", None), ("https://h1:8319", TOKEN)]
    assert "the token is sent there only over TLS, or if you give that address as the url" in in_clear.reason
    assert over_tls.ok


@pytest.mark.parametrize(("status", "advice"), [(401, "use a valid token"), (403, "use a token with read permission")])
def test_a_permanent_refusal_ends_the_queries(hub: FakeHub, status: int, advice: str) -> None:
    """A wrong token would count as guessing; the line states what to do."""
    hub.answers["/api/v1/alignment"] = (status, {"error": "no"})
    answer = ask(hub, timeout_s=60.0, token=TOKEN)

    assert (answer.ok, answer.reason_code) == (False, PreflightReason.REFUSED)
    assert answer.reason == f"{hub.url}: no; {advice}"
    assert hub.asked == [("/api/v1/alignment", f"Bearer {TOKEN}"), ("/api/v1/hubs", None)]


def test_a_daemon_that_refuses_the_token_still_leads_to_the_hub(hub: FakeHub, other: FakeHub) -> None:
    """The token is the hub's: the daemon of this machine was only asked the way, and is then asked without."""
    hub.answers["/api/v1/alignment"] = (401, {"error": "unknown credentials"})
    hub.answers["/api/v1/hubs"] = (200, page(hub_state("h1", other.url, primary=True)))
    other.agree(400)
    answer = ask(hub, token=TOKEN)

    assert (answer.ok, answer.url) == (True, other.url)
    assert [shown for path, shown in hub.asked if path != "/api/v1/alignment"] == [None, None]


def test_a_hub_that_refuses_is_passed_over_and_left_alone(
    hub: FakeHub, other: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next hub is asked repeatedly while the alignment is unknown; the one that refused receives the token once."""
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_INTERVAL_S", 0.01)
    answers = iter([None, None, 400])
    hub.agree(None, names="a")
    with serving() as refusing:
        refusing.answers["/api/v1/alignment"] = (403, {"error": "no"})
        hubs = hub_state("h1", refusing.url, primary=True), hub_state("h2", other.url)
        hub.answers["/api/v1/hubs"] = (200, page(*hubs))
        other.answers["/api/v1/alignment"] = lambda _: (200, aligned(next(answers)))
        answer = ask(hub, timeout_s=60.0, token=TOKEN)

    assert (answer.ok, answer.url) == (True, other.url)
    assert len(refusing.asked) == 1


def test_where_every_hub_refuses_nothing_is_waited_for(hub: FakeHub, other: FakeHub) -> None:
    """Asking again is of no use, although the daemon of this machine would go on answering."""
    hub.agree(None, names="a")
    hub.answers["/api/v1/hubs"] = (200, page(hub_state("h1", other.url, primary=True)))
    other.answers["/api/v1/alignment"] = (401, {"error": "no"})
    waited: list[PreflightResult] = []
    answer = ask(hub, timeout_s=1.0, token=TOKEN, on_wait=waited.append)

    assert answer.reason == f"{other.url}: no; use a valid token"
    assert (waited, len(other.asked)) == ([], 1)


@pytest.mark.parametrize(
    ("hubs", "hint"),
    [
        ([], "no hub is reporting"),
        ([("h1", "http://127.0.0.1:9/", False)], "no hub is primary yet"),
        ([("a", "http://127.0.0.1:9/", False)], "no hub is primary yet"),
        ([("h1", None, True)], "the reporting hubs have no web page"),
    ],
)
def test_a_missing_hub_is_part_of_the_reason(hub: FakeHub, hubs: list[tuple[str, str | None, bool]], hint: str) -> None:
    """No hub, one that does not speak yet (it may be the one that was asked), or one without a page."""
    hub.answers["/api/v1/alignment"] = (404, {"error": "unknown job 'llm'"})
    hub.answers["/api/v1/hubs"] = (200, page(*(hub_state(*each) for each in hubs)))
    hub.answers["/api/v1/node"] = (200, {"node": "a"})
    answer = ask(hub, nodes=None, job="llm")

    assert not answer.ok
    assert answer.reason.endswith(f"; {hint}")


def never_reported(name: str) -> dict[str, Any]:
    """As a hub lists a name that it does not know."""
    return (
        node(name, None, "has never reported to this hub")
        .model_copy(update={"reason_code": "node_never_reported"})
        .model_dump()
    )


def settled(url: str | None = None, **fields: Any) -> dict[str, Any]:
    return hub_state("h1", url, primary=True) | fields


def test_an_unknown_name_fails_at_once_with_the_nearest_names(hub: FakeHub) -> None:
    """A hub that has run for a while knows every node that reports, so a typing error fails at once."""
    hub.agree(0, names="a,trainer-1", nodes=[node("a", 200, "").model_dump(), never_reported("trainer-1")])
    hub.answers["/api/v1/hubs"] = (200, page(settled()))
    hub.answers["/api/v1/node"] = (200, {"node": "h1"})
    error = "unknown node 'trainer-1'; did you mean trainer-01, trainer-11? (2 known)"
    hub.answers["/api/v1/nodes/trainer-1"] = (404, {"error": error})
    answer = ask(hub, nodes=["a", "trainer-1"], timeout_s=600)

    assert (answer.ok, answer.reason_code) == (False, PreflightReason.NAME_UNKNOWN)
    assert answer.reason == f"{hub.url}: {error}"


def test_an_unknown_job_fails_at_once(hub: FakeHub) -> None:
    """By the hub that the daemon names, whose own answer counts."""
    with serving() as other:
        hub.answers["/api/v1/alignment"] = (404, {"error": "unknown job 'lama'"})
        hub.answers["/api/v1/hubs"] = (200, page(settled(url=other.url)))
        hub.answers["/api/v1/node"] = (200, {"node": "a"})
        other.answers["/api/v1/alignment"] = (
            404,
            {"error": "unknown job 'lama'; did you mean llama? (1 known)"},
        )
        answer = ask(hub, nodes=None, job="lama", timeout_s=600)

    assert (answer.ok, answer.reason_code) == (False, PreflightReason.NAME_UNKNOWN)
    assert answer.reason == f"{other.url}: unknown job 'lama'; did you mean llama? (1 known)"


@pytest.mark.parametrize(
    "state",
    [
        pytest.param({"started_realtime_ns": time.time_ns() + 10**15}, id="a hub that has just started"),
        pytest.param({"missing": ["b"]}, id="a node that the hub expects"),
        pytest.param({"primary": False}, id="no hub is primary"),
    ],
)
def test_a_name_that_may_come_is_waited_for(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, state: dict[str, Any]
) -> None:
    """The node may be starting, or its state on its way."""
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_INTERVAL_S", 0.01)
    hub.agree(0, names="a,b", nodes=[node("a", 200, "").model_dump(), never_reported("b")])
    hub.answers["/api/v1/hubs"] = (200, page(settled(**state)))
    hub.answers["/api/v1/node"] = (200, {"node": "h1"})
    waited: list[str] = []
    answer = ask(hub, nodes=["a", "b"], timeout_s=0.5, on_wait=lambda so_far: waited.append(so_far.reason))

    assert (answer.ok, answer.reason_code) == (False, PreflightReason.NODE_UNKNOWN)
    assert waited


LIES: list[tuple[Any, str]] = [
    (b"<html>", "not from timesyncd"),
    (b"\xff\xfe", "not from timesyncd"),
    (b"[" * 100_000, "not from timesyncd"),
    ([], "not an alignment"),
    ({"nodes": {}}, "not an alignment"),
    (aligned(1) | {"nodes": [1]}, "not an alignment"),
    (aligned(1) | {"nodes": [{"node": "a"}]}, "has no valid status"),
    (aligned(1) | {"alignment_ns": "1"}, "has no valid alignment_ns"),
    (aligned(1) | {"alignment_ns": True}, "has no valid alignment_ns"),
    (aligned(1) | {"alignment_ns": -1}, "alignment_ns = -1"),
    (aligned(1) | {"alignment_ns": 1.5}, "has no valid alignment_ns"),
    (aligned(1) | {"growth_ppb": -1}, "growth_ppb = -1"),
    (aligned(1) | {"published_realtime_ns": None}, "has no valid published_realtime_ns"),
]


@pytest.mark.parametrize(("answer", "reason"), LIES, ids=range(len(LIES)))
def test_an_invalid_response_is_never_ok(hub: FakeHub, answer: Any, reason: str) -> None:
    """Whatever a server sends: not ok, one line with its address, no exception."""
    hub.answers["/api/v1/alignment"] = (200, answer)
    answer = ask(hub)

    assert (answer.ok, answer.alignment_ns) == (False, None)
    assert answer.reason_code is PreflightReason.RESPONSE_INVALID
    assert reason in answer.reason and hub.url in answer.reason and "\n" not in answer.reason


def test_a_server_that_fails_is_not_called_another_s(hub: FakeHub) -> None:
    """The line refers to the server's log."""
    hub.answers["/api/v1/alignment"] = (500, b"Internal Server Error")

    assert ask(hub).reason == f"{hub.url}: the server failed with status 500; see its log"


def test_an_odd_pair_is_left_out(hub: FakeHub) -> None:
    """The pair only names the nodes that are furthest apart."""
    hub.agree(2_000, pair=["a", 1])

    assert ask(hub).reason == "two of them may be 2.00 us apart; 1 us is allowed"


def test_a_redirection_is_not_followed(hub: FakeHub) -> None:
    """It could lead the token anywhere."""
    hub.answers["/api/v1/alignment"] = (302, {})

    assert ask(hub, token=TOKEN).reason == f"{hub.url}: it responded with status 302"


def test_no_proxy_is_asked(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's proxy is for the world outside."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    hub.agree()

    assert ask(hub).ok


def test_an_unreachable_server_is_a_reason() -> None:
    """No exception of the network propagates."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
    answer = preflight(nodes=["a"], max_alignment_ns=1, timeout_s=0, url=url)

    assert answer.reason == (
        f"{url}: timesyncd cannot be reached: Connection refused; "
        "is timesyncd running there? See `systemctl status timesyncd`"
    )


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n{"])
def test_a_server_that_never_ends_is_left(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server accepts the connection and sends nothing, or starts and sends single bytes for ever."""
    monkeypatch.setattr("timesyncd.client.preflight_check.LAST_QUERY_TIMEOUT_S", 0.3)
    over, drips = threading.Event(), []

    def drip(server: socket.socket) -> None:
        client, _ = server.accept()
        with client, suppress(OSError):
            client.sendall(begun)
            while begun and not over.wait(0.05):
                client.sendall(b" ")
                drips.append(b" ")
            over.wait()

    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread = threading.Thread(target=drip, args=(server,))
        thread.start()
        answer = preflight(nodes=["a"], max_alignment_ns=1, timeout_s=0, url=url)
        over.set()
        thread.join()

    assert answer.reason.startswith(f"{url}: no ")
    assert len(drips) < 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": None}, {"job": "j"}, {"nodes": []}, {"nodes": ["a", ""]}, {"max_alignment_ns": -1}, {"url": "hub:8319"},
        {"url": "file:///etc/passwd"}, {"url": "http://"}, {"url": "http://h:99999"},
    ],
)  # fmt: skip
def test_a_question_that_is_none_is_a_value_error(wrong: dict[str, Any]) -> None:
    """Before anybody is asked."""
    wanted: dict[str, Any] = {"nodes": ["a"], "max_alignment_ns": 1, "timeout_s": 0, "url": "http://127.0.0.1:9/"}

    with pytest.raises(ValueError):
        preflight(**wanted | wrong)


@pytest.mark.parametrize("token", ["secret\nX: y", "sécret", "secret\x00"])
def test_a_token_that_cannot_be_sent_is_not_shown(token: str) -> None:
    """The error does not contain the token."""
    with pytest.raises(ValueError) as refused:
        preflight(nodes=["a"], max_alignment_ns=1, timeout_s=0, token=token)

    assert "cret" not in str(refused.value)
