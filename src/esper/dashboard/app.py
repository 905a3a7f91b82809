"""The dashboard's ASGI application: the page, its files, and the views of runs as JSON."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from esper.config.checks import Bounds, check, require_choice
from esper.dashboard import views
from esper.dashboard.access import (
    NOT_LOGGED_IN,
    NOT_STORED,
    READ_ONLY,
    Access,
    Guard,
    error_response,
    json_response,
    json_text,
)
from esper.dashboard.events import MAX_STREAMS, Heads, Watch
from esper.dashboard.offline_page import ENTRY, STATIC_FOLDER
from esper.dashboard.runs import RunReader
from esper.errors import ConfigError, RunError
from esper.version import __version__

if TYPE_CHECKING:
    from esper.telemetry import RunTelemetry

View = Callable[["RunTelemetry"], Any]
Answer = Callable[[Request], Awaitable[Response]]
Default = TypeVar("Default", int, None)
Word = TypeVar("Word", bound=str)

MAX_INT = 2**53
"""Larger integers are not exact in JavaScript."""

MAX_EPISODES = 500
"""Episodes in one response."""

MAX_BODY = 16_000
"""Bytes of notes that are accepted."""

N_THREADS = 4
"""Concurrent reads; few, because a run may be training on the same machine."""


class Dashboard:
    """The routes of the dashboard, behind the guard.

    Args:
        reader: Reads the runs to show.
        access: The token.
        hosts: The values of ``Host`` that requests may have.
    """

    def __init__(self, reader: RunReader, access: Access, hosts: set[str]) -> None:
        self._reader = reader
        self._access = access
        self._limiter = CapacityLimiter(N_THREADS)
        self._files = {
            path.relative_to(STATIC_FOLDER).as_posix(): path.read_bytes()
            for path in STATIC_FOLDER.rglob("*")
            if path.is_file()
        }
        self._page = _page(self._files)
        self.watch = Watch(self._read_heads)
        self.routes = [
            Route("/", self._show_page),
            Route("/login", self._log_in),
            Route("/static/{file:path}", self._show_file),
            Route("/api/events", self._stream),
            Route("/api/runs", self._list_runs),
            Route("/api/runs/{run}", self._show_run),
            Route("/api/runs/{run}/notes", self._notes, methods=["GET", "PUT"]),
            Route("/api/runs/{run}/metrics", self._show(_metrics)),
            Route("/api/runs/{run}/episodes", self._show(_episodes)),
            Route("/api/runs/{run}/episodes/{env:int}/{episode:int}", self._show(_episode)),
            Route("/api/runs/{run}/environments", self._show(_environments)),
            Route("/api/runs/{run}/health", self._show(_health)),
            Route("/api/runs/{run}/learned", self._show(lambda _: views.learned)),
        ]
        self.app = Starlette(
            routes=self.routes,
            middleware=[Middleware(Guard, access=access, hosts=hosts)],
            exception_handlers={
                HTTPException: _http_error,
                ConfigError: partial(_error, 400),
                RunError: partial(_error, 404),
                Exception: _internal_error,
            },
        )
        self.app.router.redirect_slashes = False

    async def _show_page(self, _request: Request) -> Response:
        return HTMLResponse(self._page, headers=NOT_STORED)

    async def _log_in(self, request: Request) -> Response:
        """Redirect to the page, with the token where only the page can read it."""
        query = request.query_params
        if not self._access.accepts(query.get("token", "")):
            return PlainTextResponse(NOT_LOGGED_IN, 401, NOT_STORED)
        run = f"&run={quote(query['run'], safe='')}" if "run" in query else ""
        place = f"/#token={self._access.token}{run}"
        return Response(status_code=303, headers={"Location": place, **NOT_STORED})

    async def _show_file(self, request: Request) -> Response:
        """Return a file of the page, from memory: opening a page asks for many small ones."""
        name = request.path_params["file"]
        content = self._files.get(name)
        if content is None:
            raise HTTPException(404)
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=mimetypes.guess_type(name)[0])

    async def _stream(self, request: Request) -> Response:
        if self.watch.n_streams >= MAX_STREAMS:
            raise HTTPException(503, f"{MAX_STREAMS} pages are open already; close one of them.")
        kind = "application/x-ndjson"
        if request.method == "HEAD":
            return Response(headers=NOT_STORED, media_type=kind)
        return StreamingResponse(self.watch.changes(), headers=NOT_STORED, media_type=kind)

    async def _list_runs(self, _request: Request) -> Response:
        facts = {"runs_dir": str(self._reader.root), "esper_version": __version__}
        return json_response(json_text(facts | {"runs": await self._read(self._reader.rows)}))

    async def _show_run(self, request: Request) -> Response:
        name = request.path_params["run"]
        return json_response(json_text(await self._read(partial(self._reader.detail, name))))

    async def _notes(self, request: Request) -> Response:
        """Return the notes on a run; with PUT, replace them by the body first."""
        text = None
        if request.method == "PUT":
            body = b""
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY:
                    raise HTTPException(413, f"notes have more than {MAX_BODY:,} bytes.")
            text = body.decode("utf-8", "replace")
        notes = await self._read(partial(self._reader.notes, request.path_params["run"], text))
        return json_response(json_text({"notes": notes}))

    def _show(self, parse: Callable[[Request], View]) -> Answer:
        """Return the route of a view, which is parsed from the request."""

        async def answer(request: Request) -> Response:
            view, url = parse(request), request.url
            read = partial(
                self._reader.view,
                request.path_params["run"],
                (url.path, url.query),
                lambda telemetry: json_text(view(telemetry)),
            )
            return json_response(await self._read(read))

        return answer

    async def _read_heads(self) -> Heads:
        return await self._read(self._reader.heads)

    async def _read(self, read: Callable[[], Any]) -> Any:
        """Read in a worker thread, without blocking other requests."""
        return await anyio.to_thread.run_sync(read, limiter=self._limiter, abandon_on_cancel=True)


def _page(files: dict[str, bytes]) -> str:
    """Return the page, which tells the browser of all modules at once instead of one by one."""
    modules = sorted(name for name in files if name.endswith(".js") and name != ENTRY)
    links = (f'<link rel="modulepreload" href="static/{name}">' for name in modules)
    return files["index.html"].decode().replace("</head>", "\n".join((*links, "</head>")))


def _metrics(request: Request) -> View:
    which = read_choice(request, "which", ("all", "drawn"))
    return partial(
        views.metric_series,
        after=read_int(request, "after", -1, minimum=-1),
        until=read_int(request, "until", None),
        max_points=_max_points(request),
        without=views.WITHOUT_CHART if which == "drawn" else (),
    )


def _health(request: Request) -> View:
    return partial(
        views.health,
        after=read_int(request, "after", 0),
        until=read_int(request, "until", None),
        max_points=_max_points(request),
    )


def _max_points(request: Request) -> int | None:
    """Return the number of points that series are thinned to; None for all of them."""
    return views.MAX_POINTS if read_choice(request, "points", ("few", "all")) == "few" else None


def _episodes(request: Request) -> View:
    return partial(
        views.episode_list,
        order=read_choice(request, "order", views.ORDERS),
        env=read_int(request, "env", None),
        first_round=read_int(request, "first_round", None),
        last_round=read_int(request, "last_round", None),
        limit=read_int(request, "limit", 50, minimum=1, maximum=MAX_EPISODES),
        offset=read_int(request, "offset", 0),
    )


def _episode(request: Request) -> View:
    env, episode = (min(request.path_params[name], MAX_INT) for name in ("env", "episode"))

    def view(telemetry: RunTelemetry) -> views.EpisodeDetail:
        found = views.episode_detail(telemetry, env, episode)
        if found is None:
            raise RunError("no such episode.")
        return found

    return view


def _environments(request: Request) -> View:
    return partial(views.environments, which=read_choice(request, "which", views.WHICH))


def read_int(
    request: Request, name: str, default: Default, *, minimum: int = 0, maximum: int = MAX_INT
) -> int | Default:
    """Return an integer query parameter, or the default if it is missing.

    Raises:
        ConfigError: If it is not an integer in this range.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    number = int(text) if re.fullmatch(r"-?[0-9]{1,16}", text) else text
    return check(name, number, Annotated[int, Bounds(minimum, maximum)])


def read_choice(request: Request, name: str, allowed: Sequence[Word]) -> Word:
    """Return a query parameter that must be one of the allowed words, by default the first.

    Raises:
        ConfigError: If it is another word.
    """
    return require_choice(name, request.query_params.get(name, allowed[0]), allowed)


async def _error(status: int, _request: Request, error: Exception) -> Response:
    return error_response(status, str(error))


async def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException"
    messages = {404: "not found.", 405: READ_ONLY}
    return error_response(error.status_code, messages.get(error.status_code, error.detail))


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "internal error; see the terminal of the dashboard.")
