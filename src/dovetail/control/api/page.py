"""The page: static files of `dovetail/dashboard`, at / and below /page.

What may be asked for is a table of names that was made by walking the folder: no address is ever joined to a
path. The files are kept in memory, packed already; a second later at the earliest it is looked whether they
have changed, so that a reload shows an edit. They need no token: what they show does.

The policy that goes with them lets the browser run our own files and nothing else. The import map must stand
in the document itself, so it is allowed by its hash, which is worked out from the document.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request, Response

import dovetail
from dovetail.control.api.auth import PAGE, Public
from dovetail.control.api.problems import Refusal

FOLDER = Path(dovetail.__file__).parent / "dashboard"
FIRST = "index.html"
LOOK_AGAIN = 1.0  # seconds
WORTH_PACKING = 500  # bytes
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    "": "text/plain; charset=utf-8",  # LICENSES
}
PACKED_ALREADY = (".png", ".woff2")
_IMPORT_MAP = re.compile(r"<script\s+type=[\"']?importmap[\"']?\s*>(.*?)</script>", re.DOTALL | re.IGNORECASE)

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class File:
    """One file as it is sent."""

    stamp: tuple[int, int]  # when it was changed, and its size
    type: str
    body: bytes
    packed: bytes | None  # with gzip, if that is shorter
    etag: str

    @classmethod
    def read(cls, path: Path, stamp: tuple[int, int]) -> File:
        body = path.read_bytes()
        packed = None
        if len(body) >= WORTH_PACKING and path.suffix not in PACKED_ALREADY:
            packed = gzip.compress(body, 9, mtime=0)
        digest = hashlib.sha256(body).hexdigest()[:32]
        return cls(
            stamp, TYPES[path.suffix], body, packed if packed and len(packed) < len(body) else None, digest
        )


class Files:
    """The folder's files by name, as they are now or were a second ago."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._files: dict[str, File] = {}
        self._looked_at = -LOOK_AGAIN
        self.policy = ""

    def get(self, name: str) -> File | None:
        if time.monotonic() - self._looked_at >= LOOK_AGAIN:
            self._look()
        return self._files.get(name)

    def names(self) -> list[str]:
        self._look()
        return sorted(self._files)

    def _look(self) -> None:
        found: dict[str, File] = {}
        for path in self._folder.rglob("*"):
            name = path.relative_to(self._folder).as_posix()
            hidden = any(part.startswith((".", "_")) for part in name.split("/"))
            if hidden or path.suffix not in TYPES or not path.is_file():
                continue
            try:
                stat = path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                known = self._files.get(name)
                found[name] = known if known and known.stamp == stamp else File.read(path, stamp)
            except OSError:  # it was removed, or is being written: as before, if there was one
                if name in self._files:
                    found[name] = self._files[name]
        self._files, self._looked_at = found, time.monotonic()
        self.policy = content_policy(found[FIRST].body.decode() if FIRST in found else "")


def content_policy(document: str) -> str:
    """What a browser may load for this document and run in it."""
    scripts = "".join(
        f" 'sha256-{base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()}'"
        for inner in _IMPORT_MAP.findall(document)
    )
    return (
        f"default-src 'none'; script-src 'self'{scripts}; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@router.api_route("/", methods=["GET", "HEAD"])
async def get_page(call: Public, request: Request) -> Response:
    return _sent(request, FIRST)


@router.api_route(PAGE + "{name:path}", methods=["GET", "HEAD"])
async def get_page_file(call: Public, request: Request, name: str) -> Response:
    return _sent(request, name)


def _sent(request: Request, name: str) -> Response:
    files: Files = request.app.state.files
    file = files.get(name)
    if file is None:
        if name == FIRST:
            raise Refusal("not-found", "the page is not installed; the API is at /api/v1")
        raise Refusal("not-found", "the page has no such file")
    packed = file.packed is not None and _takes_gzip(request.headers.get("accept-encoding", ""))
    etag = f'"{file.etag}-gzip"' if packed else f'"{file.etag}"'
    headers = {
        "ETag": etag,
        "Cache-Control": "no-cache",
        "Vary": "Accept-Encoding",
        "Content-Security-Policy": files.policy,
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if _has(request.headers.get("if-none-match", ""), etag):
        return Response(status_code=304, headers=headers)
    body = file.packed if packed and file.packed is not None else file.body
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(body, headers=headers, media_type=file.type)


def _has(asked: str, etag: str) -> bool:
    """Whether what the other side has is the same (RFC 9110, 13.1.2)."""
    known = [one.strip().removeprefix("W/") for one in asked.split(",")]
    return etag in known or known == ["*"]


def _takes_gzip(accepted: str) -> bool:
    for one in accepted.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() in ("gzip", "*"):
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
