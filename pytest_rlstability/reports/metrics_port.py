"""``--rl-metrics-port=N``: the run's metrics over HTTP, on loopback, while the run lasts."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest

from pytest_rlstability.model.events import Event, Started
from pytest_rlstability.reports.exposition import FindFamily, kit_families, registry_of, require_library
from pytest_rlstability.reports.run_state import RunState

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

HOST = "127.0.0.1"
_NAMES = ("localhost", HOST, "::1")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # On Windows this would let two runs have the same port.
    allow_reuse_address = os.name != "nt"


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Print nothing: requests do not belong in the output of a test run."""


def _name(host: str) -> str | None:
    """The name in a Host header; None when it has none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _loopback_only(app: WSGIApplication) -> WSGIApplication:
    """*app* for requests to a name of this machine: a web page whose own name leads here reads nothing."""

    def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if _name(environ.get("HTTP_HOST", "")) in _NAMES:
            return app(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain")])
        return [b"rl-stability: only loopback names of this machine are answered\n"]

    return answer


class MetricsPort:
    """Serves ``/metrics``. The port is taken when the run begins, so that trouble is shown then. It answers from the
    first test on: the zygote is forked before that, and must not be forked beside a thread."""

    def __init__(
        self, port: int, find_family: FindFamily = lambda name: None, *, option: str = "--rl-metrics-port"
    ) -> None:
        from prometheus_client import make_wsgi_app

        self.trouble = ""
        self._asked = f"{option}={port}"
        self._state = RunState()
        self._server = _Server((HOST, port), _Handler, bind_and_activate=False)
        self._server.set_app(_loopback_only(make_wsgi_app(registry_of(self._state, find_family))))
        self._thread = threading.Thread(target=self._server.serve_forever, name="rl-metrics-port", daemon=True)
        try:
            self._server.server_bind()
            self._server.server_activate()
        except (OSError, OverflowError) as error:
            self._give_up(error)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/metrics"

    def handle(self, event: Event) -> None:
        self._state.handle(event)
        if isinstance(event, Started) and self._thread.ident is None and not self.trouble:
            self._thread.start()

    def close(self) -> None:
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def lines(self) -> Sequence[str]:
        return ()

    def _give_up(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        self.trouble = f"{self._asked}: {reason}; there are no live metrics in this run"
        self._server.server_close()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Print the address at once, or the trouble: a soak takes hours."""
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.trouble:
            reporter.write_line(f"rl-stability: {self.trouble}", red=True)
        elif reporter is not None:
            reporter.write_line(f"rl-stability: live metrics at {self.address}")


def open_report(config: pytest.Config) -> MetricsPort | None:
    given = config.getoption("rl_metrics_port")
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or int(given) > 65535:
        raise pytest.UsageError(f"--rl-metrics-port={given} is not a port from 0 (any free one) to 65535")
    require_library("--rl-metrics-port")
    port = MetricsPort(int(given), kit_families(config))
    config.pluginmanager.register(port, "rlstability-metrics-port")
    return port
