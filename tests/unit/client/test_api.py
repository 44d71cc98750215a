"""HTTP requests to a daemon."""

from __future__ import annotations

import socket
import threading

import pytest

from timesyncd.client import api
from timesyncd.errors import Unreachable


@pytest.mark.parametrize("patience_s", [0.05, 60.0])
def test_a_server_that_does_not_respond_gives_one_error(monkeypatch: pytest.MonkeyPatch, patience_s: float) -> None:
    """The text is the same whether the wait or the socket times out first."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        where = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        outcome = api._outcome

        def in_a_moment(url: str, token: str | None, within_s: float, trusted: None) -> object:
            return outcome(url, token, within_s if patience_s < 1 else 0.05, trusted)

        monkeypatch.setattr(api, "_outcome", in_a_moment)
        with pytest.raises(Unreachable, match=f"^{where}: no response within "):
            api.get(where, None, patience_s)


def test_a_server_that_is_not_there_is_an_error_with_advice() -> None:
    """Whichever command asks, since every request goes through here."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        with pytest.raises(Unreachable, match=f"^{where}: .*refused; is timesyncd running there\\? See `systemctl"):
            api.get_json(where, None, 60.0)


def test_a_token_follows_no_redirect() -> None:
    """A server that sends a command to another one learns the token that was meant for itself, and the other one nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as server:
        where, elsewhere = (f"http://127.0.0.1:{each.getsockname()[1]}/" for each in (server, other))

        def redirect() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=redirect)
        thread.start()
        status, body = api.get(where, "a-token-of-sixteen-characters", 60.0)
        thread.join()
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()

    assert (status, body) == (302, b"")
