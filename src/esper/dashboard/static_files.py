"""The files of the page, served from memory: opening a page asks for many small ones."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PAGE = "index.html"

OF_REPORTS = "report.js"
"""The only module that the page does not use."""


@dataclass(frozen=True, kw_only=True)
class _File:
    content: bytes
    media_type: str
    etag: str


class StaticFiles:
    """An ASGI application that answers with the files of a folder, read when it is created.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in folder.rglob("*")
            if path.is_file()
        }
        self.page = self._make_page()
        """The page, which tells the browser of all modules at once instead of one by one."""

    def _make_page(self) -> str:
        modules = sorted(name for name in self._files if name.endswith(".js"))
        links = (
            f'<link rel="modulepreload" href="static/{name}">'
            for name in modules
            if name != OF_REPORTS
        )
        page = self._files[PAGE].content.decode()
        return page.replace("</head>", "\n".join((*links, "</head>")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the file at a path below the mount."""
        path = scope["path"].removeprefix(scope.get("root_path", "")).removeprefix("/")
        file = self._files.get(path)
        if file is None:
            raise HTTPException(404)
        headers = {"ETag": file.etag}
        response = Response(file.content, media_type=file.media_type, headers=headers)
        if Request(scope).headers.get("if-none-match") == file.etag:
            response = Response(status_code=304, headers=headers)
        await response(scope, receive, send)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return _File(content=content, media_type=media_type, etag=etag)
