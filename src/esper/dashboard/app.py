"""The dashboard's ASGI application: its routes, behind the guard."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from esper.dashboard.access import Access
from esper.dashboard.error_log import ErrorLog
from esper.dashboard.events import EventStream, Heads, Watch
from esper.dashboard.guard import (
    INTERNAL_ERROR,
    LOGIN,
    METHODS,
    NOT_FOUND,
    READ_ONLY,
    STATIC,
    Guard,
    HostNames,
)
from esper.dashboard.responses import (
    cookie_page,
    cookie_redirect,
    error_response,
    json_response,
    json_text,
    login_page,
)
from esper.dashboard.runs import RunListing, RunReader
from esper.dashboard.static_files import StaticFiles
from esper.errors import EsperError, RunError
from esper.reports import views
from esper.version import __version__

if TYPE_CHECKING:
    from esper.telemetry import RunTelemetry


Default = TypeVar("Default", int, None)
Word = TypeVar("Word", bound=str)

LARGEST = 2**53
"""Larger integers are not exact in JavaScript."""


class QueryError(EsperError):
    """A query parameter of a request is invalid."""


def read_int(
    query: Mapping[str, str], name: str, default: Default, *, least: int = 0, most: int = LARGEST
) -> int | Default:
    """Return an integer query parameter.

    Args:
        query: The query parameters by name.
        name: The parameter's name.
        default: The value if the parameter is missing.
        least: The smallest allowed value.
        most: The largest allowed value.

    Raises:
        QueryError: If it is not an integer in this range.
    """
    text = query.get(name)
    if text is None:
        return default
    number = parse_int(text)
    if number is None or not least <= number <= most:
        raise QueryError(
            f"{name} is {_short(text)}; it must be a whole number from {least} to {most}."
        )
    return number


def read_choice(query: Mapping[str, str], name: str, allowed: Sequence[Word]) -> Word:
    """Return a query parameter that must be one of the allowed words, by default the first.

    Raises:
        QueryError: If it is another word.
    """
    given = query.get(name, allowed[0])
    for word in allowed:
        if word == given:
            return word
    raise QueryError(f"{name} is {_short(given)}; it must be one of {', '.join(allowed)}.")


def parse_int(text: str) -> int | None:
    """Return a decimal integer of up to 15 digits, or None for any other text."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


STATIC_FOLDER = Path(__file__).parent / "static"
MOST_EPISODES = 500
"""Episodes in one response."""

POINTS = ("few", "all")
"""Whether series are thinned; the first choice is the default."""

WHICH_METRICS = ("all", "drawn")
"""Whether metrics are left out that no chart shows."""

N_THREADS = 4
"""Concurrent reads; few, because a run may be training on the same machine."""


class Dashboard:
    """The routes of the dashboard.

    Args:
        listing: The runs to show.
        access: The login token and the session.
        hosts: The host names that requests may use.
        log: Where errors are written.
    """

    def __init__(
        self, listing: RunListing, access: Access, hosts: HostNames, log: ErrorLog
    ) -> None:
        self._reader = RunReader(listing)
        self._access = access
        self._limiter: CapacityLimiter | None = None
        self._files = StaticFiles(STATIC_FOLDER)
        self.watch = Watch(self._read_heads, log)
        self.routes: list[BaseRoute] = [
            Route("/", self._page),
            Route(LOGIN, self._login),
            Mount(STATIC, self._files),
            Route("/api/events", EventStream(self.watch), methods=METHODS),
            Route("/api/runs", self._runs),
            Route("/api/runs/{run}", self._run),
            Route("/api/runs/{run}/metrics", self._metrics),
            Route("/api/runs/{run}/episodes", self._episodes),
            Route("/api/runs/{run}/episodes/{env}/{episode}", self._episode),
            Route("/api/runs/{run}/evaluations", self._view_of(views.evaluations)),
            Route("/api/runs/{run}/environments", self._environments),
            Route("/api/runs/{run}/health", self._health),
            Route("/api/runs/{run}/learned", self._view_of(views.learned)),
        ]
        app = Starlette(
            routes=self.routes,
            exception_handlers={
                HTTPException: _handle_http_error,
                QueryError: partial(_handle_error, 400),
                RunError: partial(_handle_error, 404),
                Exception: _handle_bug,
            },
        )
        app.router.redirect_slashes = False
        self.app = Guard(app, access=access, hosts=hosts, log=log)

    async def _page(self, _request: Request) -> Response:
        return HTMLResponse(self._files.page)

    async def _login(self, request: Request) -> Response:
        """Exchange the token for the session, and open the page of a run if one is named."""
        if not self._access.accepts(request.query_params.get("token", "")):
            return login_page()
        given = self._access.set_cookie, self._access.key, request.query_params.get("run", "")
        if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return cookie_redirect(*given)
        return cookie_page(*given)

    async def _runs(self, _request: Request) -> Response:
        facts = {"runs_dir": str(self._reader.listing.root), "esper_version": __version__}
        rows = await self._in_thread(self._reader.rows)
        return json_response(json_text(facts | {"runs": rows}))

    async def _run(self, request: Request) -> Response:
        name = request.path_params["run"]
        return json_response(json_text(await self._in_thread(partial(self._reader.detail, name))))

    async def _metrics(self, request: Request) -> Response:
        query = request.query_params
        which = read_choice(query, "which", WHICH_METRICS)
        make = partial(
            views.metric_series,
            after=read_int(query, "after", -1, least=-1),
            until=read_int(query, "until", None),
            most_points=_most_points(query),
            without=views.WITHOUT_CHART if which == "drawn" else (),
        )
        return await self._view(request, make)

    async def _health(self, request: Request) -> Response:
        query = request.query_params
        make = partial(
            views.health,
            after=read_int(query, "after", 0),
            until=read_int(query, "until", None),
            most_points=_most_points(query),
        )
        return await self._view(request, make)

    async def _episodes(self, request: Request) -> Response:
        query = request.query_params
        make = partial(
            views.episode_list,
            order=read_choice(query, "order", views.ORDERS),
            env=read_int(query, "env", None),
            first_round=read_int(query, "first_round", None),
            last_round=read_int(query, "last_round", None),
            limit=read_int(query, "limit", 50, least=1, most=MOST_EPISODES),
            offset=read_int(query, "offset", 0),
        )
        return await self._view(request, make)

    async def _episode(self, request: Request) -> Response:
        env, episode = (parse_int(request.path_params[name]) for name in ("env", "episode"))
        missing = RunError("no such episode.")
        if env is None or episode is None:
            raise missing

        def make(telemetry: RunTelemetry) -> Any:
            found = views.episode_detail(telemetry, env, episode)
            if found is None:
                raise missing
            return found

        return await self._view(request, make)

    async def _environments(self, request: Request) -> Response:
        which = read_choice(request.query_params, "which", views.WHICH)
        return await self._view(request, partial(views.environments, which=which))

    def _view_of(self, make: Callable[[RunTelemetry], Any]) -> Callable[[Request], Any]:
        """Return the route of a view without parameters."""

        async def answer(request: Request) -> Response:
            return await self._view(request, make)

        return answer

    async def _view(self, request: Request, make: Callable[[RunTelemetry], Any]) -> Response:
        """Return a view of the requested run."""
        name, key = request.path_params["run"], (request.url.path, request.url.query)
        read = partial(self._reader.view, name, key, lambda telemetry: json_text(make(telemetry)))
        return json_response(await self._in_thread(read))

    async def _read_heads(self) -> Heads:
        return await self._in_thread(self._reader.heads)

    async def _in_thread(self, read: Callable[[], Any]) -> Any:
        """Read in a worker thread, without blocking other requests."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(N_THREADS)
        return await anyio.to_thread.run_sync(read, limiter=self._limiter, abandon_on_cancel=True)


def _most_points(query: Mapping[str, str]) -> int | None:
    """Return the number of points that series are thinned to; None for all of them."""
    return views.MOST_POINTS if read_choice(query, "points", POINTS) == "few" else None


async def _handle_error(status: int, _request: Request, error: Exception) -> Response:
    return error_response(status, str(error))


async def _handle_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "registered for HTTPException"
    messages = {404: NOT_FOUND, 405: READ_ONLY}
    return error_response(error.status_code, messages.get(error.status_code, error.detail))


async def _handle_bug(_request: Request, _error: Exception) -> Response:
    return error_response(500, INTERNAL_ERROR)
