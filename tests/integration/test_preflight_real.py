"""Preflight asked of the real web server, over TLS, and the doctor's look at a real broker."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiomqtt
import pytest
from authority import Authority
from fake_hub import aligned
from fake_view import FakeView

from timesyncd.cli.doctor.facts import BrokerFacts, DaemonFacts, broker_facts, daemon_facts
from timesyncd.client import PreflightResult, preflight
from timesyncd.config import Config, WebSettings, parse
from timesyncd.driver import options_of
from timesyncd.messages.fleet import AlignmentState
from timesyncd.simulation.bed.broker import Mosquitto
from timesyncd.web.app import WebServer, serve

pytestmark = pytest.mark.integration

TOKEN = "a-token-for-preflight-alone"
PASSWORD = "a-password-of-the-tests"


class FreshView(FakeView):
    """Every node agrees within 400 ns, now."""

    def alignment(self, names: Sequence[str] | None, job: str | None) -> AlignmentState | None:
        if job not in (None, self.jobs()[0].job_id):
            return None
        return AlignmentState.model_validate(aligned(400, ",".join(names or ["trainer-01", "trainer-02"])))


@pytest.fixture
async def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebServer]:
    """A hub as others reach it: HTTPS, and a token that may ask about jobs alone."""
    authority = Authority(tmp_path)
    identity = authority.identity("hub", host="127.0.0.1")
    monkeypatch.setenv("HUB_TOKEN", TOKEN)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    monkeypatch.delenv("TIMESYNCD_TOKEN", raising=False)
    # Each question is asked once, and may take as long as a machine that is busy with other things needs.
    monkeypatch.setattr("timesyncd.client.preflight_check.QUERY_TIMEOUT_S", 60.0)
    monkeypatch.setattr("timesyncd.client.preflight_check.LAST_QUERY_TIMEOUT_S", 60.0)
    token = {"name": "slurm", "role": "job", "secret": {"env": "HUB_TOKEN"}}
    files = {"certificate": identity.certificate, "key": identity.key}
    server = await serve(WebSettings.model_validate({"port": 0, "token": [token]} | files), FreshView())
    yield server
    await server.close()


async def asked(hub: WebServer, token: str | None = TOKEN, **about: object) -> PreflightResult:
    wanted: dict[str, object] = {"nodes": ["trainer-01", "trainer-02"]} if not about else about
    return await asyncio.to_thread(
        lambda: preflight(max_alignment_ns=1_000, timeout_s=0, url=hub.url, token=token, **wanted)  # type: ignore[arg-type]
    )


async def test_a_hub_is_asked_over_tls(hub: WebServer) -> None:
    """With a token of the least role, about nodes and about a job by its id."""
    job_id = FakeView().jobs()[0].job_id
    answers = [await asked(hub), await asked(hub, job=job_id)]

    assert [(answer.ok, answer.alignment_ns, answer.url) for answer in answers] == [(True, 400, hub.url)] * 2


async def test_ten_thousand_nodes_are_one_question(hub: WebServer) -> None:
    """Their names fit the line that the server takes."""
    names = [f"rack-{n // 40:03}-node-{n:05}" for n in range(10_000)]
    answer = await asked(hub, nodes=names)

    assert (answer.ok, len(answer.nodes)) == (True, 10_000)


async def test_a_hub_with_a_bad_certificate_never_gets_the_token(
    hub: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate was signed by no trusted authority."""
    monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path, "another").ca))
    answer = await asked(hub)

    assert not answer.ok
    assert "certificate verify failed" in answer.reason
    assert "SSL_CERT_FILE" in answer.reason
    assert hub.wrong_credentials == 0


@pytest.mark.parametrize("is_own", [True, False])
async def test_the_doctor_accepts_the_configured_certificate(hub: WebServer, tmp_path: Path, is_own: bool) -> None:
    """This machine's daemon has one for another name, signed by no trusted authority: the doctor accepts that very one, and no other."""
    own, another = Authority(tmp_path, "own").identity("hub.example"), Authority(tmp_path, "another").identity("hub")
    files = {"certificate": str(own.certificate), "key": str(own.key)}
    token = {"name": "slurm", "secret": {"env": "HUB_TOKEN"}}
    server = await serve(WebSettings.model_validate({"port": 0, "token": [token]} | files), FreshView())
    port = int(server.url.rstrip("/").rpartition(":")[2])
    shown = files if is_own else {"certificate": str(another.certificate), "key": str(another.key)}
    path = tmp_path / "t.toml"
    path.write_text(f"[web]\nport = {port}\n" + "".join(f'{key} = "{value}"\n' for key, value in shown.items()))
    settings = parse({"web": {"port": port, "token": [token]} | shown}, options_of, "t.toml")
    seen = await asyncio.to_thread(daemon_facts, Namespace(config=path, url=None), settings)
    await server.close()

    assert isinstance(seen, DaemonFacts) is is_own
    assert server.wrong_credentials == 0


async def test_a_job_s_token_asks_by_no_job_s_name(hub: WebServer) -> None:
    """It knows its own job's id: that is refused for good, and the line states what will do."""
    answer = await asked(hub, job="llama-pretrain")

    assert (answer.ok, answer.reason.endswith("use a token with read permission")) == (False, True)


def config(broker: Mosquitto, username: str) -> Config:
    mqtt = {"host": broker.host, "port": broker.port, "username": username, "password": {"env": "BROKER_PASSWORD"}}
    return parse({"node": {"name": "n1"}, "mqtt": mqtt}, options_of, "t.toml")


@pytest.mark.parametrize(("username", "is_in"), [("n1", True), ("unknown", False)])
async def test_the_doctor_logs_in_beside_the_daemon(
    monkeypatch: pytest.MonkeyPatch, username: str, is_in: bool
) -> None:
    """With the configured credentials, and the daemon's own connection goes on."""
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    with Mosquitto(users={"n1": PASSWORD}) as broker:
        daemon = aiomqtt.Client(
            broker.host, broker.port, username="n1", password=PASSWORD, identifier="timesyncd-n1", timeout=60
        )
        async with daemon:
            seen = await broker_facts(config(broker, username), "n1")
            await daemon.publish("still/here", b"", qos=1)

    assert isinstance(seen, BrokerFacts)
    assert seen.unreachable is None
    assert (seen.refused is None) == is_in
    assert is_in or "authori" in str(seen.refused).lower()


async def test_a_missing_broker_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no matter of credentials."""
    monkeypatch.setenv("BROKER_PASSWORD", PASSWORD)
    with Mosquitto() as broker:
        broker.stop()
        seen = await broker_facts(config(broker, "n1"), "n1")

    assert seen == BrokerFacts(f"127.0.0.1:{broker.port}", unreachable="Connection refused")
