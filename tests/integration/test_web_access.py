"""Access control over real sockets: tokens, log-in by a browser, certificates."""

from __future__ import annotations

import asyncio
import gzip
import logging
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from authority import Authority
from chromium import opened
from fake_view import FakeView

from timesyncd.client.api import fetch_all
from timesyncd.config import Role, SecretSettings, TokenSettings, WebSettings
from timesyncd.errors import ConfigError, Unreachable
from timesyncd.web import auth, tls
from timesyncd.web.app import LOGIN_FILES, ROUTES, WebServer, serve
from timesyncd.web.auth import ROLE_RANKS, SESSION_COOKIE
from timesyncd.web.page_files import assets
from timesyncd.web.routes import Route

pytestmark = pytest.mark.integration

SECRETS: dict[Role, str] = {
    "job": "of-the-prolog-0123456789", "reader": "of-the-scraper-0123456789", "admin": "of-an-operator-0123456789"
}  # fmt: skip
JOB = "0f3a9c51d2b4e687"


@pytest.fixture
def tokens(tmp_path: Path) -> list[TokenSettings]:
    for role, secret in SECRETS.items():
        (tmp_path / role).write_text(f"{secret}\n")
    return [
        TokenSettings(name=f"the-{role}", role=role, secret=SecretSettings(file=tmp_path / role)) for role in SECRETS
    ]


@pytest.fixture
async def server(tokens: list[TokenSettings]) -> AsyncIterator[WebServer]:
    server = await serve(WebSettings(port=0, token=tokens), FakeView())
    yield server
    await server.close()


@pytest.fixture
async def http(server: WebServer) -> AsyncIterator[aiohttp.ClientSession]:
    """With cookies of addresses too, as a browser has them."""
    async with aiohttp.ClientSession(server.url, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield session


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def asked(path: str) -> str:
    """Something that is there."""
    queries = {
        "/api/v1/history": "?source=ptp&quantity=offset_ns",
        "/api/v1/alignment": "?nodes=trainer-01",
        "/api/v1/stability": "?source=ptp",
        "/api/v1/stability/readings": "?source=ptp",
    }
    return path.replace("/nodes/{name}", "/nodes/trainer-01").format(name="gm-a", id=JOB) + queries.get(path, "")


async def status(http: aiohttp.ClientSession, path: str, headers: dict[str, str] | None = None) -> int:
    async with http.get(path, headers=headers, allow_redirects=False) as answer:
        return answer.status


READ_ROUTES = [route for route in ROUTES if route.method == "GET"]


@pytest.mark.parametrize("route", READ_ROUTES, ids=[route.path for route in READ_ROUTES])
async def test_every_route_asks_for_its_role(http: aiohttp.ClientSession, route: Route) -> None:
    """Without credentials and with a lower role a request is rejected; the least role and higher ones succeed."""
    path = asked(route.path)
    answers = {role: await status(http, path, bearer(secret)) for role, secret in SECRETS.items()}
    enough = {role: 200 for role in SECRETS if route.role is None or ROLE_RANKS[role] >= ROLE_RANKS[route.role]}

    assert await status(http, path) == (200 if route.role is None else 401)
    assert answers == dict.fromkeys(SECRETS, 403) | enough


async def test_the_least_roles_are_these() -> None:
    """Routes for a job's prolog, a writer, an administrator, and without credentials; all others require a reader."""
    roles = (None, "job", "writer", "admin")
    by_role = {role: {route.path for route in ROUTES if route.role == role} for role in roles}

    assert by_role[None] == {"/healthz"}
    assert by_role["admin"] == {"/api/v1/config"}
    assert by_role["writer"] == {route.path for route in ROUTES if route.method == "POST"} == {"/api/v1/notes"}
    assert by_role["job"] == {
        f"/api/v1/{what}"
        for what in ("build", "node", "nodes/{name}", "jobs/{id}", "jobs/{id}/window", "alignment", "hubs")
    }


@pytest.mark.parametrize(
    ("asked_for", "answers"),
    [
        ("", (403, 200)),
        ("?job=llama-pretrain", (403, 200)),
        ("?job=nothing-like-that", (403, 404)),
        (f"?job={JOB}", (200, 200)),
        ("?nodes=trainer-01,trainer-02", (200, 200)),
    ],
)
async def test_a_job_s_token_reads_what_it_can_name(
    http: aiohttp.ClientSession, asked_for: str, answers: tuple[int, int]
) -> None:
    """
    The alignment of nodes by their names and of a job by its id: not of all, and no job is found by a guess at its
    name.
    """
    path = f"/api/v1/alignment{asked_for}"

    assert (await status(http, path, bearer(SECRETS["job"])), await status(http, path, bearer(SECRETS["reader"]))) == (
        answers
    )


async def test_a_job_s_token_learns_no_names(http: aiohttp.ClientSession) -> None:
    """The error for an unknown job lists no jobs to a client with the role job."""
    headers = {role: bearer(SECRETS[role]) for role in SECRETS}
    few, all = [await http.get("/api/v1/jobs/0000000000000000", headers=headers[role]) for role in ("job", "reader")]

    assert (await few.json())["error"] == "unknown job '0000000000000000'"
    assert JOB in (await all.json())["error"]


@pytest.mark.parametrize("path", ["/nowhere", "/api/v1/nowhere", "/api/v1/node/"])
async def test_only_a_reader_learns_that_a_path_does_not_exist(http: aiohttp.ClientSession, path: str) -> None:
    """Other clients get 401 for it."""
    assert await status(http, path) == 401
    assert await status(http, path, bearer(SECRETS["reader"])) == 404


async def test_a_401_explains_how_to_log_in(http: aiohttp.ClientSession) -> None:
    """401 names the scheme, and the page leads a browser to the log-in."""
    refused = await http.get("/api/v1/nodes")
    browser = await http.get("/", headers={"Accept": "text/html,*/*"}, allow_redirects=False)

    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (browser.status, browser.headers["Location"]) == (303, "login")


@pytest.mark.parametrize("path", [*LOGIN_FILES, *assets()])
async def test_scripts_and_style_need_no_credentials(http: aiohttp.ClientSession, path: str) -> None:
    """Scripts and style hold nothing of the installation, and the log-in is shown with them."""
    assert await status(http, path) == 200


async def test_guesses_are_limited(
    http: aiohttp.ClientSession, server: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    """
    After ten wrong tokens 429 with when to come again, also for the right one; one line of the log, without a token.
    """
    with caplog.at_level(logging.WARNING):
        wrong = [await status(http, "/api/v1/node", bearer(f"a-guess-of-a-token-{n}")) for n in range(10)]
        refused = await http.get("/api/v1/node", headers=bearer(SECRETS["admin"]))
    lines = [record.getMessage() for record in caplog.records]

    assert wrong == [401] * 10
    assert refused.status == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60
    assert lines == ["web: 1 requests with wrong credentials, the last from 127.0.0.1"]
    assert server.wrong_credentials == 10


async def test_the_commands_show_the_token_of_the_environment(
    server: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the refusals state what is wanted, and never what was shown."""
    monkeypatch.setenv("TIMESYNCD_TOKEN", "a-token-of-somebody-else")
    with pytest.raises(Unreachable, match="unknown credentials; set TIMESYNCD_TOKEN to a valid token") as caught:
        await asyncio.to_thread(fetch_all, server.url)
    monkeypatch.setenv("TIMESYNCD_TOKEN", SECRETS["reader"])
    answer = await asyncio.to_thread(fetch_all, server.url)

    assert "somebody-else" not in str(caught.value)
    assert answer["node"]["node"] == "trainer-01"


async def test_a_browser_logs_in_and_out(http: aiohttp.ClientSession) -> None:
    """
    The form gives a cookie that no script reads and no other site sends; with it all is served; after the log-out
    nothing is.
    """
    wrong = await http.post("/login", data={"token": "a-guess-of-a-token"})
    right = await http.post("/login", data={"token": SECRETS["reader"]}, allow_redirects=False)
    inside = [await status(http, path) for path in ("/", "/api/v1/nodes", "/api/v1/config")]
    left = await http.post("/logout", allow_redirects=False)

    assert (wrong.status, "unknown credentials" in await wrong.text()) == (401, True)
    assert (right.status, right.headers["Location"]) == (303, "./")
    cookie = right.headers["Set-Cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=43200"))
    assert SECRETS["reader"] not in cookie
    assert inside == [200, 200, 403]
    assert (left.headers["Location"], await status(http, "/api/v1/nodes")) == ("login", 401)


async def test_a_job_s_token_opens_no_session(http: aiohttp.ClientSession) -> None:
    """
    The log-in states which role it has and which is wanted, and goes on asking: a browser with one could not leave again.
    """
    answer = await http.post("/login", data={"token": SECRETS["job"]}, allow_redirects=False)
    page = await answer.text()

    assert (answer.status, "Set-Cookie" in answer.headers) == (403, False)
    assert "the token the-job has the role job" in page and "<form" in page


async def test_a_browser_with_a_job_s_token_is_redirected_to_the_log_in(http: aiohttp.ClientSession) -> None:
    """A browser whose credentials are a job's can show others."""
    headers = bearer(SECRETS["job"]) | {"Accept": "text/html"}
    answer = await http.get("/", headers=headers, allow_redirects=False)

    assert (answer.status, answer.headers["Location"]) == (303, "login")


async def test_a_closed_session_stays_closed(http: aiohttp.ClientSession) -> None:
    """A copy of the cookie is useless after the log-out."""
    right = await http.post("/login", data={"token": SECRETS["reader"]}, allow_redirects=False)
    copied = {"Cookie": f"{SESSION_COOKIE}={right.cookies[SESSION_COOKIE].value}"}
    before = await status(http, "/api/v1/nodes", copied)
    await http.post("/logout", allow_redirects=False)

    assert (before, await status(http, "/api/v1/nodes", copied)) == (200, 401)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
@pytest.mark.parametrize("path", ["/login", "/logout"])
async def test_another_site_s_form_is_refused(http: aiohttp.ClientSession, path: str, origin: str) -> None:
    """Its origin decides, even with the right token."""
    answer = await http.post(path, data={"token": SECRETS["reader"]}, headers={"Origin": origin})

    assert (answer.status, await answer.json()) == (403, {"error": "the form was sent from another site"})


@pytest.mark.parametrize("body", [b"", b"token", b"\xff=\xfe", b"a=1&b=2&token=3", b'{"token": 1}'])
async def test_a_form_of_anything_is_a_wrong_token(http: aiohttp.ClientSession, body: bytes) -> None:
    """Nothing else can come of it."""
    answer = await http.post("/login", data=body)

    assert answer.status == 401


async def test_a_form_without_end_is_cut(http: aiohttp.ClientSession) -> None:
    """No more is read than a token needs."""
    answer = await http.post("/login", data=b"token=" + b"x" * 100_000)

    assert (answer.status, await answer.json()) == (
        413,
        {"error": "the form is too large; at most 4096 bytes are allowed"},
    )


async def test_a_compressed_form_is_refused(http: aiohttp.ClientSession) -> None:
    """It is not unpacked: what 31 kB hold may be 31 MiB, before any credential is checked."""
    form = gzip.compress(f"token={SECRETS['reader']}".encode())
    answer = await http.post("/login", data=form, headers={"Content-Encoding": "gzip"})

    assert (answer.status, await answer.json()) == (415, {"error": "Content-Encoding: 'gzip': send it uncompressed"})


async def test_a_form_that_does_not_come_is_not_waited_for(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is answered 408 after a while."""
    monkeypatch.setattr(auth, "FORM_TIMEOUT_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1].rstrip("/")))
    writer.write(b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\ntoken=")
    async with asyncio.timeout(60):
        line = await reader.readline()
    writer.close()
    await writer.wait_closed()

    assert line == b"HTTP/1.1 408 Request Timeout\r\n"


async def test_without_tokens_there_is_no_log_in() -> None:
    """Then nothing at all takes a POST."""
    server = await serve(WebSettings(port=0), FakeView())
    async with aiohttp.ClientSession(server.url) as http:
        answers = [(await http.get("/login")).status, (await http.post("/login")).status]
    await server.close()

    assert answers == [404, 405]


async def test_a_real_browser_logs_in(server: WebServer) -> None:
    """Chromium is led to the form, sends it, is let in, receives events, and no script of the page sees the cookie."""
    async with opened(server.url) as page:
        await page.becomes("location.pathname + document.readyState", "/logincomplete")
        await page.evaluate(f"document.getElementById('token').value = {SECRETS['reader']!r}")
        await page.evaluate("document.querySelector('button').click()")
        await page.becomes("location.pathname + document.readyState", "/complete")
        first_event = """new Promise((resolve) => {
            const events = new EventSource("events"); events.addEventListener("node", () => { events.close(); resolve("node"); });
        })"""
        first = await page.evaluate(first_event)
        cookie = await page.evaluate("document.cookie")

    assert first == "node"
    assert cookie == ""


async def test_a_real_browser_with_a_job_s_token_gets_the_reason(server: WebServer) -> None:
    """The form stays, and states which token it wants instead; with that one the page is there."""
    async with opened(f"{server.url}login") as page:
        await page.evaluate(f"document.getElementById('token').value = {SECRETS['job']!r}")
        await page.evaluate("document.querySelector('button').click()")
        text = await page.until("login-error", "the token the-job has the role job")
        await page.evaluate(f"document.getElementById('token').value = {SECRETS['reader']!r}")
        await page.evaluate("document.querySelector('button').click()")
        await page.until("node-name", "trainer-01")

    assert text.endswith("the page requires the role reader, writer or admin")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def guarded(authority: Authority, **more: object) -> WebSettings:
    own = authority.identity("server", "127.0.0.1")
    return WebSettings.model_validate({"port": 0, "certificate": own.certificate, "key": own.key} | more)


def client(trusted: Authority, signer: Authority | None = None, name: str = "node-a") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusted.ca)
    if signer is not None:
        shown = signer.identity(name)
        context.load_cert_chain(shown.certificate, shown.key)
    return context


async def over_tls(server: WebServer, context: ssl.SSLContext, path: str, headers: dict[str, str] | None = None) -> int:
    async with aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(ssl=context)) as http:
        return await status(http, path, headers)


async def test_a_certificate_gives_its_role(authority: Authority) -> None:
    """Over HTTPS, one that the configured authority signed gives client_role; without one nothing is answered."""
    server = await serve(guarded(authority, client_ca=authority.ca, client_role="job"), FakeView())
    with_it = [await over_tls(server, client(authority, authority), path) for path in ("/api/v1/node", "/metrics")]
    without = await over_tls(server, client(authority), "/api/v1/node")
    await server.close()

    assert server.url.startswith("https://")
    assert (with_it, without) == ([200, 403], 401)


async def test_a_certificate_of_another_authority_is_rejected(authority: Authority, tmp_path: Path) -> None:
    """One that somebody else signed under the same name ends the connection."""
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other")
    server = await serve(guarded(authority, client_ca=authority.ca), FakeView())
    with pytest.raises(aiohttp.ClientError):
        await over_tls(server, client(authority, other), "/api/v1/node")
    await server.close()


async def test_old_tls_is_refused(authority: Authority) -> None:
    """At least 1.2."""
    context = tls.server_context(guarded(authority))

    assert context is not None and context.minimum_version is ssl.TLSVersion.TLSv1_2


async def test_over_tls_the_cookie_is_secure(authority: Authority, tokens: list[TokenSettings]) -> None:
    """It never goes over plain HTTP."""
    server = await serve(guarded(authority, token=tokens), FakeView())
    connector = aiohttp.TCPConnector(ssl=client(authority))
    async with aiohttp.ClientSession(server.url, connector=connector) as http:
        answer = await http.post("/login", data={"token": SECRETS["reader"]}, allow_redirects=False)
    await server.close()

    assert "Secure" in answer.headers["Set-Cookie"]


async def test_a_renewed_certificate_is_taken(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """New connections get it without a restart; a half-written pair in between replaces nothing."""
    monkeypatch.setattr(tls, "RELOAD_INTERVAL_S", 0.02)
    settings = guarded(authority)
    assert settings.certificate is not None and settings.key is not None
    server = await serve(settings, FakeView())
    first = await shown(server, authority)
    settings.key.write_text("half")
    await asyncio.sleep(0.1)
    between = await shown(server, authority)
    renewed = authority.identity("renewed", "127.0.0.1")
    os.replace(renewed.certificate, settings.certificate)
    os.replace(renewed.key, settings.key)
    async with asyncio.timeout(60):
        while (now := await shown(server, authority)) == first:
            await asyncio.sleep(0.02)
    await server.close()

    assert between == first
    assert now != first


async def shown(server: WebServer, authority: Authority) -> bytes:
    """The certificate that a new connection gets."""
    port = int(server.url.rsplit(":", 1)[1].rstrip("/"))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(authority))
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    await writer.wait_closed()
    assert isinstance(certificate, bytes)
    return certificate


@pytest.mark.parametrize("which", ["certificate", "client_ca"])
async def test_files_that_cannot_be_used_are_named(authority: Authority, tmp_path: Path, which: str) -> None:
    """Before anything listens, with the key of the configuration; a key with a pass phrase asks no terminal for it."""
    (tmp_path / "bad.pem").write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    settings = guarded(authority, client_ca=authority.ca).model_copy(update={which: tmp_path / "bad.pem"})

    with pytest.raises(ConfigError, match=f"^web.{which} = '.*/bad.pem': cannot load it "):
        await serve(settings, FakeView())


async def test_a_secret_that_is_missing_is_named(tmp_path: Path) -> None:
    """Before anything listens."""
    token = TokenSettings(name="x", secret=SecretSettings(file=tmp_path / "none"))

    with pytest.raises(ConfigError, match="none cannot be read"):
        await serve(WebSettings(port=0, token=[token]), FakeView())


async def test_tokens_in_clear_are_warned_of(tokens: list[TokenSettings], caplog: pytest.LogCaptureFixture) -> None:
    """On the network without TLS the daemon warns at its start, and prints no secret."""
    server = await serve(WebSettings(host="0.0.0.0", port=0, token=tokens), FakeView())
    await server.close()
    logged = caplog.text

    assert "tokens cross the network unencrypted" in logged
    assert not any(secret in logged for secret in SECRETS.values())
