"""Every route rejects strangers, and every response has security headers."""

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from esper.dashboard.guard import HEADERS, HostNames, bracketed
from tests.dashboard.conftest import HOSTILE
from tests.dashboard.served import Served

METHODS = ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get")


def test_every_route_is_covered(served: Served) -> None:
    paths = served.paths()
    assert {"/", "/login", "/api/events", "/api/runs", "/api/runs/a%20run"} <= set(paths)
    parts = ("metrics", "episodes", "episodes/0/0", "environments", "health", "learned")
    assert {f"/api/runs/a%20run/{part}" for part in parts} <= set(paths)


def test_the_documentation_lists_every_route(served: Served) -> None:
    text = (Path(__file__).parents[2] / "docs" / "dashboard.md").read_text()
    listed = set(re.findall(r"`(/(?:api|login)[^`?]*)", text))
    routes = {getattr(route, "path", "") for route in served.made.dashboard.routes}
    known = {re.sub(r"\{(\w+)\}", lambda name: name[1].upper(), route) for route in routes}
    assert listed == known - {"/", "/static"}


def test_every_route_accepts_the_cookie(served: Served) -> None:
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
        for method in ("GET", "HEAD", "POST"):
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
        for method in ("GET", "HEAD", "POST"):
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


@pytest.mark.parametrize("kind", ["none", "wrong", "the token", "of another port", "empty"])
def test_every_route_needs_the_cookie(served: Served, kind: str) -> None:
    name, _, value = served.cookie.partition("=")
    cookie = {
        "none": "",
        "wrong": f"{name}={value[:-1]}{'A' if value[-1] != 'A' else 'B'}; {name}={value}x",
        "the token": f"{name}={served.made.access.token}",
        "of another port": f"esper-1={value}",
        "empty": f"{name}=; =; ;;{name}",
    }[kind]
    for path in served.paths():
        for method in ("GET", "HEAD"):
            answer = served.ask(path, method, cookie=cookie)
            assert answer.status == 401, path
            assert "set-cookie" not in answer.headers
            assert_guarded(answer.headers, path)


@pytest.mark.parametrize("key", ["", "wrong", "{cookie}", "{token}", "{key}x"])
def test_the_cookie_alone_gives_no_data(served: Served, key: str) -> None:
    # Browsers send the cookie to servers on other ports of this machine.
    known = {"cookie": served.cookie.partition("=")[2], "token": served.made.access.token}
    given = key.format(**known, key=served.key)
    public = ("/", "/login", "/static")
    paths = [one for one in served.paths() if one not in public and not one.startswith("/static/")]
    for path in paths:
        assert served.ask(path, x_esper_key=given).status == 401, path
        assert served.ask(f"{path}?key={given}", x_esper_key="").status == 401, path


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/login"])
def test_no_response_to_the_cookie_contains_the_key(served: Served, path: str) -> None:
    answer = served.ask(path, x_esper_key="")
    assert served.key not in str(answer.headers) + answer.body.decode()


def test_the_key_alone_gives_nothing(served: Served) -> None:
    for path in served.paths():
        assert served.ask(path, cookie="").status == 401, path


def test_an_event_stream_may_have_the_key_in_its_query(served: Served) -> None:
    assert served.ask(f"/api/events?key={served.key}", x_esper_key="").status == 200


def test_programs_may_use_the_token_without_a_session(served: Served) -> None:
    token = served.made.access.token
    stranger = {"cookie": "", "x_esper_key": ""}
    for given in (f"Bearer {token}", f"bearer {token}"):
        assert served.ask("/api/runs", authorization=given, **stranger).status == 200
    for given in (token, f"Bearer {token}x", f"Basic {token}", "Bearer", f"Bearer {served.key}"):
        assert served.ask("/api/runs", authorization=given, **stranger).status == 401, given


def test_the_cookie_is_found_among_others(served: Served) -> None:
    stale = served.cookie.partition("=")[0]
    cookie = f"a=b; {stale}=of-an-earlier-start;{served.cookie}; c"
    assert served.ask("/api/runs", cookie=cookie).status == 200


@pytest.mark.parametrize(
    "token", ["", "x", "é", "%00", "%ff", "{token}x", "{short}", "{session}", "{key}"]
)
def test_a_wrong_token_is_rejected(served: Served, token: str) -> None:
    right = served.made.access.token
    session = served.cookie.partition("=")[2]
    given = token.format(token=right, short=right[:-1], session=session, key=served.key)
    answer = served.ask(f"/login?token={quote(given, safe='%')}", cookie="")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers


def test_the_token_is_exchanged_for_a_strict_cookie_repeatedly(served: Served) -> None:
    token = served.made.access.token
    for _ in range(2):
        answer = served.ask(f"/login?token={token}", cookie="")
        assert answer.status == 303
        assert answer.headers["location"] == f"/#key={served.key}"
        value, *attributes = answer.headers["set-cookie"].split("; ")
        assert set(attributes) == {"HttpOnly", "SameSite=Strict", "Path=/"}
        assert token not in value


def test_a_login_link_on_another_site_goes_through_the_cookie_page(served: Served) -> None:
    path = f"/login?token={served.made.access.token}"
    headers = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    answer = served.ask(path, cookie="", sec_fetch_site="cross-site", **headers)
    assert answer.status == 200
    assert "set-cookie" in answer.headers
    assert f'content="0; url=/#key={served.key}"'.encode() in answer.body
    assert served.made.access.token.encode() not in answer.body


def test_only_get_and_head_are_allowed(served: Served) -> None:
    for path in served.paths():
        for method in METHODS:
            answer = served.ask(path, method)
            assert answer.status == 405, (path, method)
            assert answer.headers["allow"] == "GET, HEAD"
            assert_guarded(answer.headers, path)


def test_every_response_has_the_headers_and_never_the_token(served: Served) -> None:
    for path in served.paths():
        for method in ("GET", "HEAD"):
            answer = served.ask(path, method)
            assert_guarded(answer.headers, path)
            assert served.made.access.token not in str(answer.headers)
            assert served.made.access.token.encode() not in answer.body
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
    ["/static/../../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py", "/static/%00",
     f"/static/{'x' * 5000}", "/static//etc/passwd", "//etc/passwd", "/static/%2fetc%2fpasswd"],
)  # fmt: skip
def test_files_outside_the_static_folder_are_not_found(served: Served, path: str) -> None:
    assert served.ask(path).status == 404


def test_a_websocket_upgrade_is_treated_like_a_request(served: Served) -> None:
    headers = {"upgrade": "websocket", "connection": "Upgrade", "sec_websocket_version": "13"}
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    assert served.ask("/api/runs", cookie="", sec_websocket_key=key, **headers).status == 401
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


def test_host_names_allow_only_given_names_and_the_own_address() -> None:
    names = HostNames(["box.lan", "fe80::1"], 8000, own_address=True)
    scope = {"server": ("10.0.0.5", 8000)}
    assert names.allow("box.lan:8000", scope)
    assert names.allow("[fe80::1]:8000", scope)
    assert names.allow("10.0.0.5:8000", scope)
    assert not names.allow("10.0.0.6:8000", scope)
    assert not names.allow("evil.example:8000", scope)
    assert not HostNames(["box.lan"], 8000).allow("10.0.0.5:8000", scope)
    assert HostNames(["box.lan"], 80).allow("box.lan", {})


def test_addresses_are_written_as_in_urls() -> None:
    given = ("::1", "::ffff:10.0.0.5", "127.0.0.1", "box.lan")
    assert [bracketed(name) for name in given] == ["[::1]", "10.0.0.5", "127.0.0.1", "box.lan"]


def assert_guarded(headers: dict[str, str], path: str) -> None:
    assert {name: headers.get(name.lower()) for name in HEADERS} == HEADERS
    assert headers["cache-control"] in ("no-store", "no-cache")
    if not path.startswith("/static/"):
        assert headers["cache-control"] == "no-store"
