"""
The files of the status page, which `page/build_page.py` bundled: one document for every view, and assets with a hash in
their names.

A browser keeps an asset for good and asks for the document each time: a second visit transfers a few hundred bytes.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import ETag, web

from timesyncd.web.auth import Handler
from timesyncd.web.responses import error_response

#: The addresses of the views; the last part of some is a name or an id.
VIEW_PATHS = (
    "/", "/fleet", "/node", "/node/{name}", "/grandmaster", "/grandmaster/{name}", "/job", "/job/{id}", "/timeline",
)  # fmt: skip

#: The reply of a daemon whose page is not built.
NOT_BUILT = "the page is not built: run make, or python page/build_page.py"

_TYPES = {"css": "text/css", "js": "text/javascript"}
_ONE_YEAR_S = 31_536_000
_ROOT, _LOGIN = b"{root}", b"{login}"


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file with its compressed form and its tag."""

    body: bytes
    compressed: bytes
    tag: str
    content_type: str
    cache_control: str

    @classmethod
    def of(cls, body: bytes, content_type: str, cache_control: str) -> PageFile:
        digest = hashlib.sha256(body).hexdigest()[:32]
        return cls(body, gzip.compress(body, mtime=0), digest, content_type, cache_control)

    async def serve(self, request: web.Request) -> web.Response:
        """The file, or 304 where the client's copy is current."""
        headers = {"Cache-Control": self.cache_control, "Vary": "Accept-Encoding"}
        if any(known.value in (self.tag, "*") for known in request.if_none_match or ()):
            response = web.Response(status=304, headers=headers)
        elif "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            response = web.Response(
                body=self.compressed, headers=headers, content_type=self.content_type, charset="utf-8"
            )
        else:
            response = web.Response(body=self.body, headers=headers, content_type=self.content_type, charset="utf-8")
        response.etag = ETag(self.tag)
        return response


def assets(folder: Traversable | None = None) -> dict[str, PageFile]:
    """The bundle's styles and scripts by their paths; empty where the page is not built."""
    bundle = files("timesyncd.web") / "bundle" if folder is None else folder
    if not bundle.is_dir():
        return {}
    found = [(entry, entry.name.rpartition(".")[2]) for entry in bundle.iterdir()]
    lasting = f"public, max-age={_ONE_YEAR_S}, immutable"
    return {
        f"/{entry.name}": PageFile.of(entry.read_bytes(), _TYPES[ending], lasting)
        for entry, ending in found
        if ending in _TYPES
    }


def document(path: str, has_login: bool = False, folder: Traversable | None = None) -> Handler:
    """
    Serves the document to the address `path`. Its links are relative, so that a proxy may add a prefix. `has_login`: it
    offers to log out.
    """
    index = (files("timesyncd.web") / "bundle" if folder is None else folder) / "index.html"
    if not index.is_file():
        return _not_built
    root = b"../" if path.count("/") > 1 else b"./"
    body = index.read_bytes().replace(_ROOT, root).replace(_LOGIN, b"yes" if has_login else b"no")
    return PageFile.of(body, "text/html", "no-cache").serve


async def _not_built(_request: web.Request) -> web.Response:
    return error_response(503, NOT_BUILT)
