"""A name server that knows one name, and can fall silent."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Self

PORT = 53
_A, _ANSWER_WITHOUT_ERROR, _TTL_S = 1, 0x8580, 0


class NameServer:
    """`with NameServer(name) as names:` answers at `names.host` until the end; while `is_silent` it answers nothing. Needs root."""

    host = "127.0.0.53"

    def __init__(self, name: str, address: str = "127.0.0.1") -> None:
        self.is_silent = False
        self._name = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
        self._address = socket.inet_aton(address)

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.host, PORT))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.sendto(b"", (self.host, PORT))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                query, asker = self._socket.recvfrom(512)
                if not query:
                    return
                if not self.is_silent:
                    self._socket.sendto(self._answer(query), asker)
            except OSError:
                return

    def _answer(self, query: bytes) -> bytes:
        """RFC 1035, 4.1: the question again, with the address when it asks for one; a name that is not known has none."""
        end = query.index(0, 12) + 5
        name, kind = query[12 : end - 4], int.from_bytes(query[end - 4 : end - 2])
        is_known = kind == _A and name.lower() == self._name
        head = query[:2] + struct.pack(">HHHHH", _ANSWER_WITHOUT_ERROR, 1, int(is_known), 0, 0)
        record = struct.pack(">HHHIH", 0xC00C, _A, 1, _TTL_S, 4) + self._address if is_known else b""
        return head + query[12:end] + record
