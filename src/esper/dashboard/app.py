"""The dashboard as an ASGI application: its routes, behind the guard."""

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
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from esper.dashboard.access import Access
from esper.dashboard.events import EventStream, Heads, Watch
from esper.dashboard.guard import LOGIN, METHODS, STATIC, Guard, HostNames
from esper.dashboard.responses import admission, door, json_answer, json_text, problem, threshold
from esper.dashboard.runs import RunListing, RunReader
from esper.errors import EsperError, RunError
from esper.reports import views
from esper.version import __version__

if TYPE_CHECKING:
    from esper.telemetry import RunTelemetry


Default = TypeVar("Default", int, None)
Word = TypeVar("Word", bound=str)

LARGEST = 2**53
"""Whole numbers beyond this are not exact in a browser."""


class QueryError(EsperError):
    """A part of a request's query is not what it must be."""


def read_int(
    query: Mapping[str, str], name: str, default: Default, *, least: int = 0, most: int = LARGEST
) -> int | Default:
    """Return a whole number of a query.

    Args:
        query: The query's values by name.
        name: Which one.
        default: What it is if it is not given.
        least: The least that is allowed.
        most: The most that is allowed.

    Raises:
        QueryError: If it is no whole number, or outside of that.
    """
    text = query.get(name)
    if text is None:
        return default
    number = as_int(text)
    if number is None or not least <= number <= most:
        raise QueryError(
            f"{name} is {_short(text)}; it must be a whole number from {least} to {most}."
        )
    return number


def read_word(query: Mapping[str, str], name: str, allowed: Sequence[Word]) -> Word:
    """Return a word of a query, by default the first that is allowed.

    Raises:
        QueryError: If it is another one.
    """
    given = query.get(name, allowed[0])
    for word in allowed:
        if word == given:
            return word
    raise QueryError(f"{name} is {_short(given)}; it must be one of {', '.join(allowed)}.")


def as_int(text: str) -> int | None:
    """Return the number that digits are, with a minus before them or not; None for other text."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


STATIC_FOLDER = Path(__file__).parent / "static"
MOST_EPISODES = 500
"""Episodes of one answer."""

N_THREADS = 4
"""Reads at once: what the dashboard may take from a run that trains on the same machine."""


class Dashboard:
    """The routes of the dashboard.

    Args:
        listing: The runs to show.
        access: Who may look.
        hosts: The names under which the dashboard is reached.
    """

    def __init__(self, listing: RunListing, access: Access, hosts: HostNames) -> None:
        self._reader = RunReader(listing)
        self._access = access
        self._limiter: CapacityLimiter | None = None
        self.watch = Watch(self._read_heads)
        self.routes: list[BaseRoute] = [
            Route("/", self._page),
            Route(LOGIN, self._login),
            Mount(STATIC, StaticFiles(directory=STATIC_FOLDER)),
            Route("/api/events", EventStream(self.watch), methods=METHODS),
            Route("/api/runs", self._runs),
            Route("/api/runs/{run}", self._run),
            Route("/api/runs/{run}/metrics", self._metrics),
            Route("/api/runs/{run}/episodes", self._episodes),
            Route("/api/runs/{run}/episodes/{env}/{episode}", self._episode),
            Route("/api/runs/{run}/environments", self._view_of(views.environments)),
            Route("/api/runs/{run}/health", self._view_of(views.health)),
            Route("/api/runs/{run}/learned", self._view_of(views.learned)),
        ]
        app = Starlette(
            routes=self.routes,
            exception_handlers={
                HTTPException: _tell_http,
                QueryError: partial(_tell, 400),
                RunError: partial(_tell, 404),
                Exception: _tell_defect,
            },
        )
        app.router.redirect_slashes = False
        self.app = Guard(app, access=access, hosts=hosts)

    async def _page(self, _request: Request) -> Response:
        return FileResponse(STATIC_FOLDER / "index.html", media_type="text/html")

    async def _login(self, request: Request) -> Response:
        """Exchange the token for the cookie."""
        if not self._access.is_key(request.query_params.get("token", "")):
            return door()
        cookie = self._access.set_cookie
        if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return admission(cookie)
        return threshold(cookie)

    async def _runs(self, _request: Request) -> Response:
        facts = {"runs_dir": str(self._reader.listing.root), "esper_version": __version__}
        rows = await self._in_thread(self._reader.rows)
        return json_answer(json_text(facts | {"runs": rows}))

    async def _run(self, request: Request) -> Response:
        name = request.path_params["run"]
        return json_answer(json_text(await self._in_thread(partial(self._reader.detail, name))))

    async def _metrics(self, request: Request) -> Response:
        after = read_int(request.query_params, "after", -1, least=-1)
        return await self._view(request, lambda telemetry: views.metric_series(telemetry, after))

    async def _episodes(self, request: Request) -> Response:
        query = request.query_params
        make = partial(
            views.episode_list,
            order=read_word(query, "order", views.ORDERS),
            env=read_int(query, "env", None),
            first_round=read_int(query, "first_round", None),
            last_round=read_int(query, "last_round", None),
            limit=read_int(query, "limit", 50, least=1, most=MOST_EPISODES),
            offset=read_int(query, "offset", 0),
        )
        return await self._view(request, make)

    async def _episode(self, request: Request) -> Response:
        env, episode = (as_int(request.path_params[name]) for name in ("env", "episode"))
        missing = RunError("there is no such episode.")
        if env is None or episode is None:
            raise missing

        def make(telemetry: RunTelemetry) -> Any:
            found = views.episode_detail(telemetry, env, episode)
            if found is None:
                raise missing
            return found

        return await self._view(request, make)

    def _view_of(self, make: Callable[[RunTelemetry], Any]) -> Callable[[Request], Any]:
        """Return the route of a view that takes nothing but the run."""

        async def answer(request: Request) -> Response:
            return await self._view(request, make)

        return answer

    async def _view(self, request: Request, make: Callable[[RunTelemetry], Any]) -> Response:
        """Return what a view shows of the run that is asked for."""
        name, key = request.path_params["run"], (request.url.path, request.url.query)
        read = partial(self._reader.view, name, key, lambda telemetry: json_text(make(telemetry)))
        return json_answer(await self._in_thread(read))

    async def _read_heads(self) -> Heads:
        return await self._in_thread(self._reader.heads)

    async def _in_thread(self, read: Callable[[], Any]) -> Any:
        """Read something without holding up the others."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(N_THREADS)
        return await anyio.to_thread.run_sync(read, limiter=self._limiter, abandon_on_cancel=True)


async def _tell(status: int, _request: Request, error: Exception) -> Response:
    return problem(status, str(error))


async def _tell_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "this handler is for those"
    words = {404: "there is nothing here.", 405: "the dashboard only shows; use GET or HEAD."}
    return problem(error.status_code, words.get(error.status_code, error.detail))


async def _tell_defect(_request: Request, _error: Exception) -> Response:
    return problem(500, "the dashboard has a defect; its terminal says more.")
