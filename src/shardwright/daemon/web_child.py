"""The web process beside the daemon: its socket, its start, its restarts and its end.

    Daemon (main thread)   bind    binds before anything opens: an address in use is an error of the start
    web thread             run     starts the process, supervises it, restarts it after a while, ends it with
                           the daemon

The process inherits the listening socket, so that connections wait while it restarts. It uses the control
socket like any other client; an error in it costs only the page. It writes a byte every second as a sign of
life: a process that hangs is killed.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ConfigError
from shardwright.model.extras import install_line
from shardwright.model.json_text import parse_json
from shardwright.rework.runtime.child import end_child, start_child, take

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from shardwright.config.model import Config, Http

PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "prometheus_client": "prometheus-client",
    "PIL": "pillow",
}
BACKLOG = 64
STOP_TIMEOUT_S = 3.0
_LOOK_S = 0.2
# without a sign of life: far longer than a busy machine keeps a process of low priority waiting
_SILENCE_S = 30.0
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0  # a process that lived so long resets the waits
_LAST_WORDS_BYTES = 2000


def check_packages() -> None:
    """Raises ``ConfigError`` where the extra ``web`` is not installed."""
    missing = [package for module, package in PACKAGES.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(
            f"needs packages that are not installed: {', '.join(missing)}",
            hint=f"{install_line('web')}, or http.enabled: false.",
        )


def web_settings(config: Config) -> WebSettings:
    """Returns the settings of the web process, from the configuration. Raises ``ConfigError`` where there is
    no control socket."""
    if config.control_socket_path is None:
        raise ConfigError(
            "needs the control socket, which this configuration turns off",
            expected="a path for control.socket",
        )
    http, output = config.http, config.output
    address = http.address[0]
    # Not 0.0.0.0: our pages never use it, but foreign pages may.
    own = () if address != "localhost" and ipaddress.ip_address(address).is_unspecified else (address,)
    return WebSettings(
        control_socket=config.control_socket_path,
        descriptor=-1,
        hosts=(*own, *http.allowed_hosts),
        origins=http.allowed_origins,
        preview_hz=http.preview_hz,
        output_root=str(output.root),
        spill_root=None if output.spill_root is None else str(output.spill_root),
    )


class WebService:
    """The web process. ``bind`` in the main thread, then ``run`` in one of its own, which ends after
    ``close``."""

    def __init__(
        self, http: Http, settings: WebSettings, emit: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        self._http = http
        self._settings = settings
        self._emit = emit
        self._closing = threading.Event()
        self._listener: socket.socket | None = None

    @property
    def url(self) -> str:
        """The page's address, for users of this machine. After ``bind``."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"

    def bind(self) -> None:
        """Binds the socket. Raises ``ConfigError`` for an address that is taken or not this machine's."""
        host, port = self._http.address
        try:
            self._listener = socket.create_server(
                (host, port),
                family=socket.AF_INET6 if ":" in host else socket.AF_INET,
                backlog=BACKLOG,
                reuse_port=False,
            )
        except OSError as error:
            hint = "Does another daemon or program listen there?" if port else None
            raise ConfigError(
                f"cannot listen on {self._http.listen}", got=error.strerror or str(error), hint=hint
            ) from None

    def unbind(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def close(self) -> None:
        self._closing.set()

    def run(self) -> None:
        """Runs until ``close``. An error here costs the page, and nothing else."""
        try:
            self._warn()
            self._look_after_children()
        except Exception as error:  # noqa: BLE001  (the cameras must not suffer for it)
            self._emit(
                "web_died", {"error": f"{type(error).__name__}: {error}", "exc_info": error, "again": False}
            )
        finally:
            self.unbind()

    def _warn(self) -> None:
        if not self._http.local:
            hint = "Anyone who can connect sees everything; this machine only: http.listen: 127.0.0.1:8790"
            self._emit("web_open_to_the_network_warning", {"url": self.url, "hint": hint})

    def _look_after_children(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._closing.is_set():
            begin_s = time.monotonic()
            why = self._one_child()
            if why is None:
                return
            wait_s = _FIRST_WAIT_S if time.monotonic() - begin_s > _STEADY_S else wait_s
            self._emit("web_died", {"url": self.url, "error": why, "again_in_s": wait_s})
            self._closing.wait(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _one_child(self) -> str | None:
        """Runs one process to its end; returns the reason, None when we ended it."""
        assert self._listener is not None
        descriptor = self._listener.fileno()
        command = [
            sys.executable,
            "-m",
            "shardwright.web",
            replace(self._settings, descriptor=descriptor).to_json(),
        ]
        try:
            child = _WebChild(start_child(command, descriptors=[descriptor]))
        except OSError as error:
            return f"it could not be started: {error.strerror}"
        try:
            return self._until_it_ends(child)
        finally:
            child.end()

    def _until_it_ends(self, child: _WebChild) -> str | None:
        reported = False
        while not self._closing.wait(_LOOK_S):
            code = child.poll()
            if child.serves and not reported:
                reported = True
                self._emit("web_ready", {"url": self.url, "pid": child.pid})
            if code is not None:
                return child.why(code)
            if child.silence_s > _SILENCE_S:
                return f"no sign of life for {_SILENCE_S:.0f} s"
            if words := child.words():
                self._emit("web_error", {"error": words})
        return None


class _WebChild:
    """One process and its output. Owned by the web thread."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._errors = b""
        self._last_line = ""
        self._heard_s = time.monotonic()
        self.serves = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def silence_s(self) -> float:
        return time.monotonic() - self._heard_s

    def poll(self) -> int | None:
        """Returns the exit code once it has ended. Collects its output so far."""
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        code = self._process.poll()
        if take(self._process.stdout):
            self.serves, self._heard_s = True, time.monotonic()
        self._errors = (self._errors + take(self._process.stderr))[-_LAST_WORDS_BYTES:]
        return code

    def words(self) -> str:
        """Returns its output on standard error since the last call."""
        words, self._errors = self._errors.decode(errors="replace").strip(), b""
        self._last_line = words.splitlines()[-1] if words else self._last_line
        return words

    def why(self, code: int) -> str:
        """Returns its last line, which may have been reported already while the process was ending."""
        self.words()
        return (
            self._last_line
            if self._last_line and code > 0
            else f"ended by signal {-code}"
            if code < 0
            else f"exit code {code}"
        )

    def end(self) -> None:
        if self._process.poll() is None:
            end_child(self._process, STOP_TIMEOUT_S)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()


@dataclass(frozen=True)
class WebSettings:
    """The settings. ``descriptor``: the listening socket that the process inherits. ``hosts``: names in the
    Host header beside those of the loopback address."""

    control_socket: str
    descriptor: int
    hosts: tuple[str, ...]
    origins: tuple[str, ...]
    preview_hz: float
    output_root: str
    spill_root: str | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WebSettings:
        facts = parse_json(text, may_be_nan=True)
        return cls(**{**facts, "hosts": tuple(facts["hosts"]), "origins": tuple(facts["origins"])})
