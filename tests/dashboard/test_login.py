"""Login by token and by a proxy's header, and requests that try to do without."""

import asyncio
import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import pytest
from click.testing import CliRunner
from starlette.requests import HTTPConnection

from onceflow.cli import onceflow
from onceflow.dashboard import login as logins
from onceflow.dashboard.api.routes import PREFIX, ROUTES
from onceflow.dashboard.login import COOKIE, ProxyLogin, TokenLogin, TooManyAttempts, WrongToken, read_token
from onceflow.dashboard.server import LoginMissing, serve
from onceflow.dashboard.sources import Addresses
from onceflow.remedies import Remedy
from tests import remedies
from tests.conftest import WITHIN_S
from tests.dashboard.conftest import UNREACHABLE, Counted, RunningPage, run_apart
from tests.dashboard.test_app import get

if TYPE_CHECKING:
    from playwright.sync_api import Page

TOKEN = "0123456789abcdef-token"
ServePage = Callable[..., RunningPage]


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "FAILURE_S", 0.0)


@pytest.fixture
def base(serve_page: ServePage, counted: Counted) -> str:
    """A page that needs the token."""
    counted.micro_batch({("ann", "iOS"): 1})
    return serve_page(counted.addresses(), login=TokenLogin(TOKEN)).url


def post(
    base: str, path: str, fields: dict[str, str], headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    """Send a form."""
    address = urlsplit(base)
    with contextlib.closing(http.client.HTTPConnection(address.netloc, timeout=WITHIN_S)) as connection:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", path, urlencode(fields), form | (headers or {}))
        response = connection.getresponse()
        content = response.read().decode()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, content


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_nothing_without_a_login(base: str) -> None:
    status, headers, _ = get(base, "/")
    assert (status, headers["location"]) == (303, "/login")
    paths = ["/api", "/metrics", "/api/openapi.json", "/api/snapshot", "/api/user?uid=ann", "/events", "/no-such-path"]
    for path in [*paths, *(PREFIX + route.path for route in ROUTES)]:
        status, headers, body = get(base, path)
        assert (status, json.loads(body)["code"]) == (401, "login-required"), path
        assert headers["www-authenticate"] == "Bearer"
    assert json.loads(get(base, "/health")[2]) == {"ok": False}
    assert "127.0.0.1" in get(base, "/health", bearer(TOKEN))[2].decode()
    assert get(base, "/static/page.js")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        bearer(""),
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        bearer("\xe9" * 20),
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}=99999999999.{'0' * 64}"},
        {"Cookie": f"{COOKIE}=99999999999999999999.x"},
        {"Cookie": f"{COOKIE}=\xb2.x"},
    ],
)
def test_wrong_tokens_are_refused(base: str, headers: dict[str, str]) -> None:
    assert get(base, "/api/snapshot", headers)[0] == 401


def test_bearer_token_is_accepted(base: str) -> None:
    assert json.loads(get(base, f"{PREFIX}capabilities", bearer(TOKEN))[2])["login"] == "token"
    assert get(base, "/", {"Authorization": f"bearer {TOKEN}"})[0] == 200


def test_form_sets_a_cookie(base: str) -> None:
    status, headers, page = post(base, "/login", {"token": TOKEN[1:]})
    assert (status, "set-cookie" in headers, TOKEN[1:] in page) == (401, False, False)
    status, headers, _ = post(base, "/login", {"token": f" {TOKEN}\n"})
    assert (status, headers["location"]) == (303, "/")
    cookie, *attributes = headers["set-cookie"].split("; ")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(attributes)
    assert TOKEN not in cookie and "Secure" not in attributes
    assert get(base, "/api/snapshot", {"Cookie": cookie})[0] == 200
    assert get(base, "/", {"Cookie": cookie})[0] == 200
    forged = f"{COOKIE}={int(cookie.partition('=')[2].partition('.')[0]) + 1}.{cookie.partition('.')[2]}"
    assert get(base, "/api/snapshot", {"Cookie": forged})[0] == 401
    _, headers, _ = post(base, "/login", {"token": TOKEN}, {"X-Forwarded-Proto": "https"})
    assert "Secure" in headers["set-cookie"]
    _, headers, _ = post(base, "/logout", {})
    assert headers["set-cookie"].startswith(f'{COOKIE}=""') and "Max-Age=0" in headers["set-cookie"]


def test_cookie_survives_restart_and_expires() -> None:
    now_s = [1_000_000.0]

    def is_session(login: TokenLogin, cookie: str) -> bool:
        scope = {"type": "http", "headers": [(b"cookie", f"{COOKIE}={cookie}".encode())], "client": None}
        return run_apart(login.is_allowed(HTTPConnection(scope)))

    cookie = TokenLogin(TOKEN, lambda: now_s[0]).session()
    again = TokenLogin(TOKEN, lambda: now_s[0])
    assert is_session(again, cookie)
    assert not is_session(TokenLogin(TOKEN + "2", lambda: now_s[0]), cookie)
    now_s[0] += logins.SESSION_S
    assert not is_session(again, cookie)


def test_pages_of_other_sites_are_refused(base: str) -> None:
    _, headers, _ = post(base, "/login", {"token": TOKEN})
    cookie = {"Cookie": headers["set-cookie"].partition(";")[0]}
    other = (
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    )
    for sent in other:
        for path in ("/api/snapshot", "/events", f"{PREFIX}now"):
            assert get(base, path, cookie | sent)[0] == 403, (path, sent)
        for path in ("/login", "/logout"):
            assert post(base, path, {"token": TOKEN}, sent)[0] == 403, (path, sent)
    own = {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind-a-proxy.example"}
    assert get(base, "/api/snapshot", cookie | own)[0] == 200
    assert get(base, "/api/snapshot", cookie | {"Origin": base})[0] == 200


def test_forms_that_are_none(base: str) -> None:
    assert post(base, "/login", {})[0] == 400
    assert post(base, "/login", {"token": "x" * 5_000})[0] == 400
    assert post(base, "/login", {f"name{number}": "x" for number in range(9)})[0] == 400
    assert get(base, "/login")[0] == 200
    assert get(base, "/logout", bearer(TOKEN))[0] == 405


def connection_from(address: str) -> HTTPConnection:
    return HTTPConnection({"type": "http", "headers": [], "client": (address, 1)})


def test_failed_attempts_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "FAILURE_S", 3_600.0)
    now_s = 0.0

    async def scenario() -> None:
        nonlocal now_s
        login = TokenLogin(TOKEN, monotonic_s=lambda: now_s)
        attackers = ["10.0.0.1"] * 3 + ["2001:db8::1", "2001:db8::2", "2001:db8::ffff:3"]
        attempts = [asyncio.create_task(login.is_token("x", connection_from(address))) for address in attackers]
        await asyncio.sleep(0)
        assert not any(attempt.done() for attempt in attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for address in ("10.0.0.1", "2001:db8::4"):
            with pytest.raises(TooManyAttempts):
                await login.is_token(TOKEN, connection_from(address))
        for address in ("10.0.0.2", "2001:db8:0:1::1", "::ffff:10.0.0.3", "fe80::1%eth0"):
            assert await login.is_token(TOKEN, connection_from(address))
        now_s = 3_600.0
        assert await login.is_token(TOKEN, connection_from("10.0.0.1"))

    run_apart(scenario())


def test_attackers_cannot_lock_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures from many addresses fill all places of waiting responses; the right token is read nevertheless."""
    monkeypatch.setattr(logins, "FAILURE_S", 3_600.0)

    async def scenario() -> None:
        login = TokenLogin(TOKEN)
        attempts = [
            asyncio.create_task(login.is_token("x", connection_from(f"10.0.{number // 250}.{number % 250}")))
            for number in range(logins.FAILURES_MAX - 1)
        ]
        await asyncio.sleep(0)
        assert sum(not attempt.done() for attempt in attempts) == logins.WAITING_MAX
        assert await login.is_token(TOKEN, connection_from("10.9.0.1"))
        assert not await login.is_token("x", connection_from("10.9.0.2"))
        with pytest.raises(TooManyAttempts):
            await login.is_token(TOKEN, connection_from("10.9.0.1"))
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    run_apart(scenario())


def test_proxy_names_the_user(serve_page: ServePage, counted: Counted) -> None:
    counted.micro_batch({("ann", "iOS"): 1})
    trusted = serve_page(counted.addresses(), login=ProxyLogin("X-Remote-User", ["127.0.0.0/8"])).url
    assert get(trusted, "/api/snapshot", {"X-Remote-User": "ada"})[0] == 200
    assert json.loads(get(trusted, f"{PREFIX}capabilities", {"X-Remote-User": "ada"})[2])["login"] == "header"
    for headers in ({}, {"X-Remote-User": " "}, bearer(TOKEN)):
        assert get(trusted, "/api/snapshot", headers)[0] == 401
    assert get(trusted, "/", {})[0] == 401
    other = serve_page(counted.addresses(), login=ProxyLogin("X-Remote-User", ["10.0.0.7"])).url
    for forwarded in ({}, {"X-Forwarded-For": "10.0.0.7"}, {"X-Real-IP": "10.0.0.7"}):
        assert get(other, "/api/snapshot", {"X-Remote-User": "ada"} | forwarded)[0] == 401


def test_two_names_of_a_user_are_refused(serve_page: ServePage, counted: Counted) -> None:
    page = serve_page(counted.addresses(), login=ProxyLogin("X-Remote-User", ["127.0.0.1"])).url
    with socket.create_connection((urlsplit(page).hostname or "", urlsplit(page).port or 0)) as connection:
        names = b"X-Remote-User: ada\r\nx-remote-user: eve\r\n"
        connection.sendall(b"GET /api/snapshot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + names + b"\r\n")
        assert connection.makefile("rb").readline().split()[1] == b"401"


def test_server_names_are_accepted(serve_page: ServePage, counted: Counted) -> None:
    page = serve_page(counted.addresses(), server_names=["clicks.example"]).url
    assert get(page, "/api/snapshot", {"Host": "clicks.example"})[0] == 200
    assert get(page, "/api/snapshot", {"Host": "evil.example"})[0] == 400


# The command


def token_file(directory: Path, text: str, mode: int = 0o600) -> Path:
    path = directory / "token"
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    "text", ["", "short", "x" * 257, "a token with spaces", "tökentökentöken", "line\nbreak-line-break"]
)
def test_unusable_tokens_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(WrongToken, match="expected 16 to 256"):
        read_token(token_file(tmp_path, text))


def test_readable_and_missing_tokens_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongToken, match="every user of this machine can read"):
        read_token(token_file(tmp_path, TOKEN, 0o644))
    with pytest.raises(WrongToken, match="No such file"):
        read_token(tmp_path / "none")
    assert read_token(token_file(tmp_path, f"{TOKEN}\n", 0o640)) == TOKEN


@pytest.mark.parametrize(
    "options",
    [
        ("--trust-header", "X-User"),
        ("--trusted-proxies", "10.0.0.7"),
        ("--trust-header", "X-User", "--trusted-proxies", "proxy.example"),
        ("--trust-header", "X-User", "--trusted-proxies", ""),
        ("--trust-header", "X-User", "--trusted-proxies", "10.0.0.7", "--token-file", "TOKEN"),
        ("--link", "Spark"),
        ("--link", "Spark=javascript:alert(1)"),
    ],
)
def test_wrong_options_are_usage_errors(options: tuple[str, ...], tmp_path: Path) -> None:
    path = token_file(tmp_path, TOKEN)
    words = [str(path) if word == "TOKEN" else word for word in options]
    assert CliRunner().invoke(onceflow, ["dashboard", "--port", "0", *words]).exit_code == 2


@pytest.mark.remedy(Remedy.REQUIRE_LOGIN)
def test_public_address_needs_a_login(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::"):
        with pytest.raises(LoginMissing) as refused:
            serve(Addresses(bootstrap=UNREACHABLE, redis_url="redis://127.0.0.1:1/1"), host=host, port=0)
        remedies.find(Remedy.REQUIRE_LOGIN, refused.value)
    command = [sys.executable, "-m", "onceflow", "dashboard", "--host", "0.0.0.0", "--port", "0"]
    command += ["--redis", "redis://127.0.0.1:1/1", "--bootstrap", UNREACHABLE]
    command += ["--token-file", str(token_file(tmp_path, TOKEN))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base = process.stdout.readline().split()[-1]
        assert get(base, "/api/snapshot", {"Host": "my-machine.example"})[0] == 401
        assert get(base, "/api/snapshot", {"Host": "my-machine.example"} | bearer(TOKEN))[0] == 200
        assert post(base, "/login", {"token": "wrong-wrong-wrong-wrong"})[0] == 401
        assert TOKEN not in Path(f"/proc/{process.pid}/cmdline").read_text()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WITHIN_S)
        assert (process.returncode, output, errors) == (0, "", "")


def test_form_in_a_browser(page: "Page", base: str) -> None:
    from playwright.sync_api import expect

    page.goto(base)
    expect(page).to_have_url(f"{base}/login")
    page.get_by_label("Token").fill("wrong-wrong-wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This is not the token.")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    expect(page).to_have_url(f"{base}/")
    assert page.evaluate("document.cookie") == ""
    assert page.evaluate("fetch('/api/v1/capabilities').then(response => response.status)") == 200
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(f"{base}/login")
    assert page.evaluate("fetch('/api/v1/capabilities').then(response => response.status)") == 401
