"""The HTTP server behind ``--rl-metrics-port``, on loopback."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
from prometheus_client import make_wsgi_app

from pytest_rlstability.reports.exposition import registry_of
from pytest_rlstability.reports.run_state import RunState

HOST = "127.0.0.1"


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # On Windows this would let two runs have the same port.
    allow_reuse_address = os.name != "nt"


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are nothing that a test run should print."""


class MetricsPort:
    """Serves ``/metrics``. The port is taken when the run begins, so that trouble is told then, and answers from
    the first test on: processes are forked until then, and none must be forked beside a thread."""

    def __init__(self, port: int) -> None:
        self.trouble = ""
        self._asked = port
        self._state = RunState()
        self._server = _Server((HOST, port), _Handler, bind_and_activate=False)
        self._server.set_app(make_wsgi_app(registry_of(self._state)))
        self._thread = threading.Thread(target=self._server.serve_forever, name="rl-metrics-port", daemon=True)
        try:
            self._server.server_bind()
        except (OSError, OverflowError) as error:
            self._give_up(error)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._server.server_port}/metrics"

    def hear(self, event: Mapping[str, Any]) -> None:
        self._state.hear(event)
        if event["event"] == "started" and self._thread.ident is None and not self.trouble:
            self._serve()

    def close(self) -> None:
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def lines(self) -> Sequence[str]:
        return ()

    def _serve(self) -> None:
        try:
            self._server.server_activate()
        except OSError as error:
            self._give_up(error)
        else:
            self._thread.start()

    def _give_up(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or error
        self.trouble = f"--rl-metrics-port={self._asked}: {reason}; there are no live metrics in this run"
        self._server.server_close()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Say at once where the metrics are, or that they are not: nobody wants to wait for the end of a soak."""
        reporter = session.config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None and self.trouble:
            reporter.write_line(f"rl-stability: {self.trouble}", red=True)
        elif reporter is not None:
            reporter.write_line(f"rl-stability: live metrics at {self.address}")
