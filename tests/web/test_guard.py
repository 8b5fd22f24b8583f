"""Who may ask the web process, and for what: everything else is refused before it reaches a page, a store or
the daemon."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .web_process import WebProcess, settings_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with WebProcess(
        settings_for(tmp_path_factory.mktemp("root"), hosts=("rig-3.example.org", "192.168.7.5"))
    ) as site:
        yield site
        assert site.errors() == ""


OURS = [
    "127.0.0.1",
    "127.0.0.1:{port}",
    "localhost:{port}",
    "LocalHost",
    "localhost:9999",
    "[::1]:{port}",
    "rig-3.example.org:80",
    "192.168.7.5",
]
FOREIGN = [
    "evil.example",
    "evil.example:{port}",
    "localhost.evil.example",
    "127.0.0.1.evil.example:{port}",
    "example.org",
    "x.rig-3.example.org",
    "192.168.7.6",
    "0.0.0.0:{port}",
    "localhost.",
    "localhost:{port}@evil.example",
    "evil.example#localhost",
    "localhost,evil.example",
    "[::1",
    "[::2]",
    "127.1",
    "2130706433",
    "",
    ":{port}",
    "localhost:port",
    "localhost:123456",
]


@pytest.mark.parametrize("host", OURS)
def test_our_own_names_are_answered(site: WebProcess, host: str) -> None:
    assert site.ask("/", headers={"Host": host.format(port=site.port)}).status == 200


@pytest.mark.parametrize("host", FOREIGN)
@pytest.mark.parametrize("path", ["/", "/api/status", "/stores/x.ome.zarr/zarr.json"])
def test_foreign_hosts_are_refused_everywhere(site: WebProcess, host: str, path: str) -> None:
    answer = site.ask(path, headers={"Host": host.format(port=site.port), "Origin": "http://evil.example"})
    assert answer.status == 421, answer
    assert b"http.allowed_hosts" in answer.body
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("host", FOREIGN)
def test_a_probe_may_call_the_machine_by_any_name(site: WebProcess, host: str) -> None:
    """As kubelet does, by the address of a pod. It learns a state, and nothing else. A page elsewhere may not
    read the answer, unless its own name was made to point here (DNS rebinding): the state is no secret."""
    for path in ("/healthz", "/healthz/live", "/healthz/ready"):
        answer = site.ask(
            path, headers={"Host": host.format(port=site.port), "Origin": "http://evil.example"}
        )
        assert (answer.status, answer.body) == (503, b'{"live":false,"ready":false,"state":"silent"}')
        assert "Access-Control-Allow-Origin" not in answer.headers
    assert site.ask("/healthzz", headers={"Host": "evil.example"}).status == 421
    assert site.say(b"GET /healthz HTTP/1.0\r\n\r\n").split(b"\r\n")[0].split()[1] == b"503"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
    ],
    ids=["none", "two", "http-1.0"],
)
def test_a_request_without_one_host_is_refused(site: WebProcess, head: bytes) -> None:
    assert site.say(head).split(b"\r\n")[0].split()[1] in (b"400", b"421")


def test_a_host_in_the_address_does_not_replace_the_header(site: WebProcess) -> None:
    assert (
        b" 421 "
        in site.say(b"GET http://localhost/ HTTP/1.1\r\nHost: evil.example\r\n\r\n").split(b"\r\n")[0]
    )


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND", "LOCK", "get"]
)
@pytest.mark.parametrize("path", ["/", "/api/status", "/stores/x.ome.zarr/zarr.json"])
def test_nothing_can_be_changed(site: WebProcess, method: str, path: str) -> None:
    answer = site.ask(path, method)
    assert (answer.status, answer.headers["Allow"], answer.headers["Connection"]) == (
        405,
        "GET, HEAD, OPTIONS",
        "close",
    )


@pytest.mark.parametrize(
    "headers", [{"Content-Length": "4"}, {"Transfer-Encoding": "chunked"}], ids=["length", "chunked"]
)
def test_a_body_is_refused_and_not_waited_for(site: WebProcess, headers: dict[str, str]) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items())
    assert b" 413 " in site.say(f"GET / HTTP/1.1\r\n{head}\r\n".encode()).split(b"\r\n")[0]


def test_options_and_head_are_answered_without_a_body(site: WebProcess) -> None:
    options = site.ask("/", "OPTIONS")
    assert (options.status, options.headers["Allow"], options.body) == (204, "GET, HEAD, OPTIONS", b"")
    assert "Access-Control-Allow-Origin" not in options.headers, "no page elsewhere may read the status"
    head, get = site.ask("/", "HEAD"), site.ask("/")
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(get.body)))
    probe = site.ask("/healthz", "HEAD")
    assert (probe.status, probe.body, probe.headers["Content-Type"]) == (503, b"", "application/json")


def test_every_answer_carries_what_keeps_browsers_honest(site: WebProcess) -> None:
    for path in ("/", "/api/status", "/nothing", "/stores/x/y"):
        headers = site.ask(path).headers
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
        assert "default-src" in headers["Content-Security-Policy"]
        assert "Server" not in headers


def test_without_a_daemon_the_page_is_there_and_its_questions_are_503(site: WebProcess) -> None:
    assert site.ask("/").status == 200
    for path in ("/api/status", "/api/events?after=3", "/api/preview/x.png"):
        answer = site.ask(path)
        assert answer.status == 503
        assert b'"code":"session_lost"' in answer.body


@pytest.mark.parametrize("after", ["x", "-1", "1e3", "%00", "9" * 40, "\u0663"])
def test_events_after_no_number_are_refused(site: WebProcess, after: str) -> None:
    assert site.ask(f"/api/events?after={after}".encode("ascii", "xmlcharrefreplace").decode()).status == 400


def test_an_answer_is_not_sent_again_to_who_has_it(site: WebProcess) -> None:
    tag = site.ask("/").headers["ETag"]
    again = site.ask("/", headers={"If-None-Match": tag})
    assert (again.status, again.body) == (304, b"")
