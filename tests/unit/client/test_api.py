"""HTTP requests to a daemon."""

from __future__ import annotations

import socket

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
