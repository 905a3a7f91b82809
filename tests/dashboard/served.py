"""A dashboard on a local port, queried by raw requests."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esper.dashboard.server import Server, serving

TIMEOUT = 20.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A response of the server."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A running dashboard and a client that is logged in."""

    def __init__(self, made: Server, thread: threading.Thread) -> None:
        self.made = made
        self._thread = thread
        self.port = made.port
        self.host = f"127.0.0.1:{made.port}"
        self.token = made.access.token

    @contextmanager
    def open(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield a response whose body is not read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        given = {"host": self.host, "authorization": f"Bearer {self.token}"} | headers
        given |= {"content-length": str(len(body))} if body else {}
        for name, value in given.items():
            if value:
                connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body or None)
        with closing(connection), connection.getresponse() as response:
            yield response

    def ask(self, path: str, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
        """Return a response; empty headers are not sent."""
        with self.open(path, method, body, **headers) as response:
            found = {name.lower(): value for name, value in response.getheaders()}
            is_stream = found.get("content-type", "").startswith("application/x-ndjson")
            body = b"" if is_stream else response.read()
            return Answer(status=response.status, headers=found, body=body)

    def end(self) -> float:
        """Stop the server, and return the seconds it took."""
        start = time.monotonic()
        self.made.stop()
        self._thread.join(TIMEOUT)
        return time.monotonic() - start

    def paths(self, run: str = "a run") -> list[str]:
        """Return a path for each route, and some that do not exist."""
        given = {"run": run.replace(" ", "%20"), "env": "0", "episode": "0", "file": "main.js"}
        found = [
            "/nowhere",
            "/api",
            "/api/nowhere",
            "/static",
            "/static/",
            "/static/no.js",
            "/static/index.html",
            "/favicon.ico",
        ]
        for route in self.made.dashboard.routes:
            found.append(re.sub(r"\{(\w+)[^}]*\}", lambda name: given[name[1]], route.path))
        return found


@contextmanager
def serve(runs_dir: Path, **options: Any) -> Iterator[Served]:
    """Serve a folder of runs within the context."""
    with serving(runs_dir, port=0, tell=print, **options) as made:
        thread = threading.Thread(target=made.run)
        thread.start()
        try:
            yield Served(made, thread)
        finally:
            made.stop()
            thread.join()
