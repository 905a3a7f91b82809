"""Every route rejects strangers, and every response has security headers."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from esper.dashboard.access import bracketed, spellings
from esper.dashboard.server import HEADERS, allowed_hosts
from tests.dashboard.conftest import HOSTILE
from tests.dashboard.served import Served

METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")


def test_every_route_is_covered(served: Served) -> None:
    paths = served.paths()
    assert {"/", "/login", "/api/events", "/api/runs", "/api/runs/a%20run"} <= set(paths)
    parts = ("notes", "metrics", "episodes", "episodes/0/0", "environments", "health", "learned")
    assert {f"/api/runs/a%20run/{part}" for part in parts} <= set(paths)


def test_the_documentation_lists_every_route(served: Served) -> None:
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    listed = set(re.findall(r"`(/(?:api|login)[^`?]*)", text))
    routes = {getattr(route, "path", "") for route in served.made.dashboard.routes}
    known = {re.sub(r"\{(\w+)[^}]*\}", lambda name: name[1].upper(), route) for route in routes}
    assert listed == known - {"/", "/static/FILE"}


def test_every_route_accepts_the_token(served: Served) -> None:
    answers = {path: served.ask(path).status for path in served.paths()}
    refused = {path for path, status in answers.items() if status != 200}
    nowhere = {"/nowhere", "/api", "/api/nowhere", "/static", "/static/", "/static/no.js"}
    assert refused == nowhere | {"/favicon.ico", "/login"}
    assert answers["/login"] == 401  # without a token
    assert {answers[path] for path in refused - {"/login"}} == {404}


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost:{port}.evil",
     "localhost.:{port}", "127.0.0.2:{port}", "0.0.0.0:{port}", "a@127.0.0.1:{port}", "[::]:{port}",
     "127.0.0.1:{port}, evil.example", "2130706433:{port}", ":{port}"],
)  # fmt: skip
def test_a_foreign_host_is_rejected_everywhere(served: Served, host: str) -> None:
    for path in served.paths():
        for method in ("GET", "HEAD", "POST", "PUT"):
            answer = served.ask(path, method, host=host.format(port=served.port))
            assert answer.status == 403, path
            assert_guarded(answer.headers, path)


@pytest.mark.parametrize("host", ["localhost:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_loopback_names_are_accepted(served: Served, host: str) -> None:
    assert served.ask("/api/runs", host=host.format(port=served.port)).status == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1",
     "http://localhost:{port}", "http://127.0.0.1:1", "http://127.0.0.1:{port}.evil.example", "x"],
)  # fmt: skip
def test_a_foreign_origin_is_rejected_everywhere(served: Served, origin: str) -> None:
    for path in served.paths():
        for method in ("GET", "HEAD", "POST", "PUT"):
            answer = served.ask(path, method, origin=origin.format(port=served.port))
            assert answer.status == 403, path
            assert "access-control-allow-origin" not in answer.headers
            assert_guarded(answer.headers, path)


def test_the_own_origin_is_accepted(served: Served) -> None:
    assert served.ask("/api/runs", origin=f"http://{served.host}").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("dest", ["empty", "script", "image", "iframe", "object"])
def test_other_sites_cannot_embed_anything(served: Served, site: str, dest: str) -> None:
    mode = "navigate" if dest in ("iframe", "object") else "no-cors"
    for path in served.paths():
        answer = served.ask(path, sec_fetch_site=site, sec_fetch_mode=mode, sec_fetch_dest=dest)
        assert answer.status == 403, path


def test_other_sites_may_link_to_the_page_and_the_login_only(served: Served) -> None:
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    link["sec_fetch_dest"] = "document"
    statuses = {path: served.ask(path, **link).status for path in served.paths()}
    assert {path for path, status in statuses.items() if status != 403} == {"/", "/login"}


@pytest.mark.parametrize(
    "given",
    ["", "{token}", "Bearer", "Bearer {token}x", "Bearer {short}", "Basic {token}", "Bearer é",
     "Bearer {ticket}"],
)  # fmt: skip
def test_all_but_the_empty_page_needs_the_token(served: Served, given: str) -> None:
    token, ticket = served.token, served.made.access.make_ticket()
    header = given.format(token=token, short=token[:-1], ticket=ticket)
    for path in served.paths():
        for method in ("GET", "HEAD", *(["PUT"] if path.endswith("/notes") else [])):
            answer = served.ask(path, method, authorization=header)
            assert (answer.status == 401) == (path != "/" and not path.startswith("/static/")), path
            assert "set-cookie" not in answer.headers
            assert_guarded(answer.headers, path)


def test_the_token_is_accepted_only_in_the_header(served: Served) -> None:
    for name in ("token", "key"):
        assert served.ask(f"/api/runs?{name}={served.token}", authorization="").status == 401
    cookie = f"esper-{served.port}={served.token}"
    assert served.ask("/api/runs", authorization="", cookie=cookie).status == 401
    assert served.ask("/api/runs", authorization=f"bearer {served.token}").status == 200


@pytest.mark.parametrize("token", ["", "x", "é", "%00", "%ff", "{token}x", "{short}"])
def test_a_wrong_token_is_rejected(served: Served, token: str) -> None:
    given = token.format(token=served.token, short=served.token[:-1])
    answer = served.ask(f"/login?token={quote(given, safe='%')}", authorization="")
    assert answer.status == 401
    assert "location" not in answer.headers


def test_logging_in_opens_the_page_with_the_token(served: Served) -> None:
    for _ in range(2):
        answer = served.ask(f"/login?token={served.token}&run=a%20run%20%26", authorization="")
        assert answer.status == 303
        assert answer.headers["location"] == f"/#token={served.token}&run=a%20run%20%26"
        assert "set-cookie" not in answer.headers


def test_only_notes_can_be_changed(served: Served) -> None:
    for path in served.paths():
        for method in METHODS:
            if path.endswith("/notes") and method == "PUT":
                continue
            answer = served.ask(path, method)
            assert answer.status == 405, (path, method)
            assert answer.headers["allow"].startswith("GET, HEAD")
            assert_guarded(answer.headers, path)


def test_every_response_has_the_headers_and_never_the_token(served: Served) -> None:
    for path in served.paths():
        for method in ("GET", "HEAD"):
            answer = served.ask(path, method)
            assert_guarded(answer.headers, path)
            assert served.token not in str(answer.headers)
            assert served.token.encode() not in answer.body
            assert "server" not in answer.headers


def test_the_content_security_policy_is_strict(served: Served) -> None:
    policy = served.ask("/").headers["content-security-policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in policy
    assert "*" not in policy


def test_the_page_has_no_inline_scripts_or_styles(served: Served) -> None:
    page = served.ask("/").body.decode()
    assert "<style" not in page
    assert " style=" not in page
    assert page.count("<script") == page.count('<script type="module" src="')


@pytest.mark.parametrize(
    "path",
    ["/static/../../access.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py", "/static/%00",
     f"/static/{'x' * 5000}", "/static//etc/passwd", "//etc/passwd", "/static/%2fetc%2fpasswd"],
)  # fmt: skip
def test_files_outside_the_static_folder_are_not_found(served: Served, path: str) -> None:
    assert served.ask(path).status == 404


def test_a_websocket_upgrade_is_treated_like_a_request(served: Served) -> None:
    headers = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13"}
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    assert served.ask("/api/runs", authorization="", sec_websocket_key=key, **headers).status == 401
    assert served.ask("/api/runs", sec_websocket_key=key, **headers).status == 200


@pytest.mark.parametrize(
    "name",
    ["..", ".", "%2e%2e", "%2e%2e%2f", "..%2fa%20run", "%00", "a%20run%00", "a%2520run", "x" * 9000,
     "%ff", "a%20run%2f..%2fa%20run", "~", "*", "A%20RUN", "%2fetc"],
)  # fmt: skip
def test_only_listed_names_find_a_run(served: Served, name: str) -> None:
    for path in (f"/api/runs/{name}", f"/api/runs/{name}/metrics", f"/api/runs/{name}/health"):
        answer = served.ask(path)
        assert answer.status == 404, path
        assert list(answer.json) == ["error"]


def test_a_hostile_name_is_returned_as_json(served: Served) -> None:
    names = [run["name"] for run in served.ask("/api/runs").json["runs"]]
    assert HOSTILE in names
    answer = served.ask(f"/api/runs/{quote(HOSTILE, safe='')}")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["id"] == HOSTILE


def test_only_a_remote_dashboard_allows_other_names() -> None:
    assert allowed_hosts("127.0.0.1", "127.0.0.1", 8000) == {
        "127.0.0.1:8000",
        "localhost:8000",
        "[::1]:8000",
    }
    assert "box.lan:8000" in allowed_hosts("box.lan", "10.0.0.5", 8000)
    assert "0.0.0.0:8000" not in allowed_hosts("0.0.0.0", "0.0.0.0", 8000)
    assert "box.lan" not in spellings("box.lan", 8000)
    assert "box.lan" in spellings("Box.lan", 80)


def test_addresses_are_written_as_in_urls() -> None:
    given = ("::1", "::ffff:10.0.0.5", "127.0.0.1", "box.lan")
    assert [bracketed(name) for name in given] == ["[::1]", "10.0.0.5", "127.0.0.1", "box.lan"]


def assert_guarded(headers: dict[str, str], path: str) -> None:
    assert {name: headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert headers["cache-control"] in ("no-store", "no-cache")
    if not path.startswith("/static/"):
        assert headers["cache-control"] == "no-store"
