"""Access control: tokens, sessions, certificates, and the limit on guesses."""

from __future__ import annotations

from pathlib import Path

import pytest

from timesyncd.clocks import NS_PER_S
from timesyncd.config import Role, SecretSettings, TokenSettings, WebSettings
from timesyncd.errors import ConfigError
from timesyncd.web import auth as module
from timesyncd.web.auth import (
    MINUTE_NS,
    Access,
    BrowserSessions,
    Credentials,
    Denial,
    FailedAttempts,
    Grant,
    access_warnings,
    network_key,
)

SECRETS = {
    "slurm": "of-the-prolog-0123456789",
    "prometheus": "of-the-scraper-0123456789",
    "ops": "of-an-operator-0123456789",
}
ROLES: dict[str, Role] = {"slurm": "job", "prometheus": "reader", "ops": "admin"}


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> WebSettings:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(f"TOKEN_{name}", secret)
    tokens = [
        TokenSettings(name=name, role=role, secret=SecretSettings(env=f"TOKEN_{name}")) for name, role in ROLES.items()
    ]
    return WebSettings(host="192.0.2.1", token=tokens)


@pytest.fixture
def access(settings: WebSettings) -> Access:
    return Access(settings)


def bearer(secret: str, address: str = "192.0.2.9") -> Credentials:
    return Credentials(address, f"Bearer {secret}")


@pytest.mark.parametrize("name", SECRETS)
def test_a_token_gives_its_role(access: Access, name: str) -> None:
    """Each secret is its own token's."""
    assert access.authorize(bearer(SECRETS[name]), 0) == Grant(name, ROLES[name])


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer ", "Basic b2Y6YW4=", "Bearer of-the-prolog-012345678", "Bearer of-the-prolog-0123456789x",
     "Bearer OF-THE-PROLOG-0123456789", "Bearer \udcff"],
)  # fmt: skip
def test_wrong_credentials_are_rejected_and_counted(access: Access, authorization: str) -> None:
    """Status 401 and one failure of that address; the response does not contain the credentials."""
    decision = access.authorize(Credentials("192.0.2.9", authorization), 0)

    assert decision == Denial(401, "unknown credentials")
    assert access.failures.total == 1


def test_missing_credentials_are_no_guess(access: Access) -> None:
    """A request without credentials gets an explanation and is not counted."""
    decision = access.authorize(Credentials("192.0.2.9"), 0)

    assert isinstance(decision, Denial) and decision.status == 401
    assert access.failures.total == 0


def test_roles_reach_downwards() -> None:
    """job < reader < admin."""
    order: list[Role] = ["job", "reader", "admin"]
    reached = {has: [needed for needed in order if Grant("x", has).covers(needed)] for has in order}

    assert reached == {"job": ["job"], "reader": ["job", "reader"], "admin": ["job", "reader", "admin"]}


def test_on_loopback_without_tokens_everybody_reads() -> None:
    """Local clients; with a token or a certificate authority configured they need credentials too."""
    certificates = {"certificate": Path("c"), "key": Path("k"), "client_ca": Path("a")}
    guarded = Access(WebSettings.model_validate(certificates))

    assert Access(WebSettings()).authorize(Credentials("127.0.0.1"), 0) == Grant("a client on this host", "reader")
    assert isinstance(guarded.authorize(Credentials("127.0.0.1"), 0), Denial)


def test_loopback_with_tokens_requires_credentials(settings: WebSettings) -> None:
    """A proxy before the server may forward requests of any client."""
    access = Access(settings.model_copy(update={"host": "127.0.0.1"}))

    assert isinstance(access.authorize(Credentials("127.0.0.1"), 0), Denial)


def test_a_certificate_gives_the_configured_role(settings: WebSettings) -> None:
    """TLS verified the certificate; a token takes precedence, even a wrong one."""
    access = Access(settings.model_copy(update={"client_role": "job"}))
    with_both = Credentials("192.0.2.9", "Bearer wrong", certificate="node-a")

    assert access.authorize(Credentials("192.0.2.9", certificate="node-a"), 0) == Grant("node-a", "job")
    assert isinstance(access.authorize(with_both, 0), Denial)


def test_a_short_secret_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file would admit every client; the error contains no secret."""
    monkeypatch.setenv("TOKEN_short", "hunter2")

    with pytest.raises(
        ConfigError, match=r"web.token\[0\].secret: the secret of x is shorter than 16 characters"
    ) as caught:
        Access(WebSettings(token=[TokenSettings(name="x", secret=SecretSettings(env="TOKEN_short"))]))
    assert "hunter2" not in str(caught.value)


def test_spaces_around_a_secret_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of Windows, or with a space at its end, holds the token that a request shows without them."""
    monkeypatch.setenv("TOKEN_x", " of-the-prolog-0123456789 \r\n")
    access = Access(WebSettings(token=[TokenSettings(name="x", secret=SecretSettings(env="TOKEN_x"))]))

    assert access.authorize(bearer("of-the-prolog-0123456789"), 0) == Grant("x", "reader")


def test_a_secret_of_spaces_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many."""
    monkeypatch.setenv("TOKEN_x", " " * 40)

    with pytest.raises(ConfigError, match="shorter than 16 characters"):
        Access(WebSettings(token=[TokenSettings(name="x", secret=SecretSettings(env="TOKEN_x"))]))


@pytest.mark.parametrize(
    ("name", "of", "error"),
    [
        ("y", "slurm", r"web.token\[1\].secret: y and slurm have the same secret; give each token its own"),
        ("slurm", "ops", r"web.token\[1\].name = 'slurm': another token has this name; give each token its own"),
    ],
)
def test_no_two_tokens_share(settings: WebSettings, name: str, of: str, error: str) -> None:
    """A shared secret would give an arbitrary role, and with a shared name the log could not tell the tokens apart."""
    first = settings.token[0]
    second = TokenSettings(name=name, role="admin", secret=SecretSettings(env=f"TOKEN_{of}"))

    with pytest.raises(ConfigError, match=error) as caught:
        Access(WebSettings(token=[first, second]))
    assert not any(secret in str(caught.value) for secret in SECRETS.values())


def test_no_secret_is_kept(access: Access) -> None:
    """What the daemon holds in memory, and would show in a trace, is digests."""
    held = repr(vars(access)) + repr(vars(access._secrets))

    assert not any(secret in held for secret in SECRETS.values())


def test_ten_guesses_block_the_address(access: Access) -> None:
    """
    Then even a correct token gets 429 with the time to retry; other addresses are unaffected, and a minute later so is
    this one.
    """
    for n in range(10):
        access.authorize(bearer(f"guess-{n}"), n * NS_PER_S)
    right = SECRETS["ops"]
    refused, elsewhere = (
        access.authorize(bearer(right), 10 * NS_PER_S),
        access.authorize(bearer(right, "192.0.2.10"), 10 * NS_PER_S),
    )
    later = access.authorize(bearer(right), MINUTE_NS)

    assert refused == Denial(429, "too many wrong credentials from this address: retry in 50 s", 50)
    assert (elsewhere, later) == (Grant("ops", "admin"), Grant("ops", "admin"))
    assert access.failures.total == 10


def test_success_does_not_undo_guesses(access: Access) -> None:
    """Otherwise the holder of one token could guess others without limit."""
    for n in range(10):
        access.authorize(bearer(f"guess-{n}"), n)
        access.authorize(bearer(SECRETS["slurm"]), n)

    assert access.authorize(bearer(SECRETS["slurm"]), 10) == Denial(
        429, "too many wrong credentials from this address: retry in 60 s", 60
    )


def test_guesses_need_bounded_memory() -> None:
    """Beyond a thousand addresses all others share one count, which is limited too."""
    failures = FailedAttempts()
    for n in range(module.MAX_ADDRESSES + 20):
        failures.record(f"10.0.{n // 256}.{n % 256}", n)

    assert len(failures._counts) == module.MAX_ADDRESSES + 1
    assert failures.wait_s("198.51.100.1", 5_000) == 60
    assert failures.wait_s("10.0.0.1", 5_000) is None
    assert failures.wait_s("198.51.100.1", 2 * MINUTE_NS) is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
    ],
)
def test_of_ipv6_a_network_counts_as_one(address: str, network: str) -> None:
    """A host with one address of the network has all 2^64."""
    assert network_key(address) == network


def test_a_session_ends() -> None:
    """After twelve hours, or when it is closed; an id that was never given is none."""
    sessions, grant = BrowserSessions(), Grant("ops", "admin")
    one, other = sessions.open(grant, 0), sessions.open(grant, 0)
    sessions.close(other)

    assert sessions.find(one, module.SESSION_NS - 1) == grant
    assert sessions.find(one, module.SESSION_NS) is None
    assert (sessions.find(other, 1), sessions.find("", 1)) == (None, None)


def test_sessions_are_bounded() -> None:
    """The oldest of the same token goes, and of no other one."""
    sessions, ops, screen = BrowserSessions(), Grant("ops", "admin"), Grant("screen", "reader")
    other = sessions.open(ops, 0)
    ids = [sessions.open(screen, 0) for _ in range(module.MAX_SESSIONS + 1)]

    assert [sessions.find(id, 1) for id in (ids[0], ids[1], ids[-1])] == [None, screen, screen]
    assert sessions.find(other, 1) == ops


def test_where_no_credentials_are_required_those_given_are_ignored() -> None:
    """A token or a session for another daemon does not reduce a local client's role, and is no guess."""
    access = Access(WebSettings())
    credentials = Credentials("127.0.0.1", authorization="Bearer of-another-daemon-0123", session="of another")
    decisions = [access.authorize(credentials, n) for n in range(20)]

    assert decisions == [Grant("a client on this host", "reader")] * 20
    assert access.failures.total == 0


def test_a_configuration_without_a_reader_is_warned_of(settings: WebSettings) -> None:
    """Where every token, and every certificate, has the role job; a reader among them is enough."""
    prolog = settings.model_copy(update={"host": "127.0.0.1", "token": settings.token[:1]})
    certificates = {"certificate": Path("c"), "key": Path("k"), "client_ca": Path("a")}

    assert [warning.split(":")[0] for warning in access_warnings(prolog)] == [
        "no client can read the page, the metrics or timesyncd status"
    ]
    assert len(access_warnings(prolog.model_copy(update=certificates | {"client_role": "job"}))) == 1
    assert access_warnings(prolog.model_copy(update=certificates)) == []
    assert access_warnings(settings.model_copy(update={"host": "127.0.0.1"})) == []


def test_unencrypted_tokens_are_warned_of(settings: WebSettings) -> None:
    """On the network without TLS; not on loopback."""
    assert len(access_warnings(settings)) == 1
    assert access_warnings(settings.model_copy(update={"host": "::1"})) == access_warnings(WebSettings()) == []
