"""What HTTP clients see through a chaos proxy: nothing when it is idle, and the real thing when a fault strikes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pytest_rlstability.kits.proxy.handle import ChaosProxy

httpx = pytest.importorskip("httpx")
requests = pytest.importorskip("requests")
urllib3 = pytest.importorskip("urllib3")

BODY = bytes(range(256)) * 1024
StartProxy = Callable[..., ChaosProxy]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        if self.path == "/chunked":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for start in range(0, len(BODY), 65536):
                self.wfile.write(b"%x\r\n" % 65536 + BODY[start : start + 65536] + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")
        elif self.path == "/unsized":
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(BODY)
        else:
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

    def do_POST(self) -> None:
        received = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(received)))
        self.end_headers()
        self.wfile.write(received)

    def log_message(self, format: str, *args: object) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # broken connections are what these tests are about


@pytest.fixture
def server() -> Iterator[tuple[str, int]]:
    with QuietServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.05,))
        thread.start()
        yield "127.0.0.1", running.server_port
        running.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: tuple[str, int], chaos_proxy: StartProxy) -> ChaosProxy:
    return chaos_proxy(*server, seed=1)


@pytest.fixture
def url(proxy: ChaosProxy) -> str:
    return f"http://{proxy.host}:{proxy.port}"


@pytest.mark.parametrize("path", ["/fixed", "/chunked", "/unsized"])
def test_untouched_when_no_fault_applies(proxy: ChaosProxy, url: str, path: str) -> None:
    with requests.Session() as session, httpx.Client() as client, urllib3.PoolManager() as pool:
        for _ in range(3):
            assert session.get(url + path).content == BODY
            assert client.get(url + path).content == BODY
            assert pool.request("GET", url + path).data == BODY
            assert session.post(url, data=BODY).content == BODY
    assert proxy.stats.faults == {}
    assert proxy.stats.bytes_downstream > 12 * len(BODY)
    assert proxy.stats.bytes_upstream > 3 * len(BODY)
    assert proxy.stats.bytes == proxy.stats.bytes_downstream + proxy.stats.bytes_upstream


def test_keep_alive_clients_keep_their_connection(proxy: ChaosProxy, url: str) -> None:
    with requests.Session() as session:
        for _ in range(20):
            session.get(url + "/chunked")
    assert proxy.stats.connections == 1


def test_reset_before_the_answer(proxy: ChaosProxy, url: str) -> None:
    proxy.add("reset")
    with pytest.raises(requests.ConnectionError, match=r"ConnectionResetError\(104"):
        requests.get(url, timeout=10)
    with pytest.raises(httpx.ReadError, match=r"Errno 104"):
        httpx.get(url)
    assert proxy.stats.reset == 2


@pytest.mark.parametrize("path", ["/fixed", "/chunked"])
def test_reset_in_the_middle_of_a_body(proxy: ChaosProxy, url: str, path: str) -> None:
    proxy.add("reset", after_bytes=100_000)
    with pytest.raises(requests.exceptions.ChunkedEncodingError, match=r"ConnectionResetError\(104"):
        requests.get(url + path, timeout=10)
    with pytest.raises(urllib3.exceptions.ProtocolError, match=r"ConnectionResetError\(104"):
        urllib3.request("GET", url + path, retries=False)
    with pytest.raises(httpx.ReadError, match=r"Errno 104"):
        httpx.get(url + path)
    assert proxy.stats.reset == 3


def test_cut_in_the_middle_of_a_body_is_a_clean_end(proxy: ChaosProxy, url: str) -> None:
    proxy.add("cut", after_bytes=100_000)
    with pytest.raises(requests.exceptions.ChunkedEncodingError, match="IncompleteRead"):
        requests.get(url + "/fixed", timeout=10)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(url + "/chunked")
    assert proxy.stats.cut == 2


def test_cut_without_a_length_is_silent_loss(proxy: ChaosProxy, url: str) -> None:
    proxy.add("cut", after_bytes=100_000)
    answer = requests.get(url + "/unsized", timeout=10)
    assert answer.status_code == 200
    assert 99_000 < len(answer.content) < 100_000


def test_stall_is_a_read_timeout_and_ends_with_clear(proxy: ChaosProxy, url: str) -> None:
    proxy.add("stall", after_bytes=1000)
    with pytest.raises(requests.ConnectionError, match="timed out"):
        requests.get(url, timeout=0.5)
    with requests.get(url, timeout=10, stream=True) as answer:
        give_up = time.monotonic() + 60
        while proxy.stats.stall < 2 and time.monotonic() < give_up:
            pass
        proxy.clear()
        assert answer.content == BODY
    assert proxy.stats.stall == 2


def test_drip_defeats_a_read_timeout(proxy: ChaosProxy, url: str) -> None:
    proxy.add("drip", size=20_000, seconds=0.05)
    assert requests.get(url, timeout=5).content == BODY
    assert proxy.stats.drip == 1


def test_shaping_faults_change_no_byte_and_work_together(proxy: ChaosProxy, url: str) -> None:
    proxy.add("delay", seconds=0.02, jitter=0.02)
    proxy.add("throttle", bytes_per_second="2MB")
    proxy.add("drip", size=50_000, seconds=0.01, after_bytes=100_000)
    for path in ("/fixed", "/chunked", "/unsized"):
        assert requests.get(url + path, timeout=10).content == BODY
    assert proxy.stats.faults == {"delay": 3, "throttle": 3, "drip": 3}


def test_upstream_faults_strike_the_request(proxy: ChaosProxy, url: str) -> None:
    proxy.add("reset", direction="upstream", after_bytes=50_000)
    assert requests.get(url, timeout=10).content == BODY, "a short request must not reach the limit"
    with pytest.raises(requests.ConnectionError):
        requests.post(url, data=BODY, timeout=10)
    assert proxy.stats.reset == 1


def test_a_fault_on_all_reaches_a_connection_already_open(proxy: ChaosProxy, url: str) -> None:
    with requests.Session() as session:
        assert session.get(url).content == BODY
        proxy.add("reset")
        with pytest.raises(requests.ConnectionError):
            session.get(url, timeout=10)
        proxy.clear()
        assert session.get(url).content == BODY


def test_every_third_connection(proxy: ChaosProxy, url: str) -> None:
    proxy.add("reset", every=3)
    outcomes = [_outcome(url) for _ in range(9)]
    assert outcomes == ["ok", "ok", "reset"] * 3
    assert (proxy.stats.reset, proxy.stats.connections) == (3, 9)


def test_a_rate_repeats_with_its_seed(server: tuple[str, int], chaos_proxy: StartProxy) -> None:
    def outcomes(seed: int) -> list[str]:
        proxy = chaos_proxy(*server, seed=seed)
        proxy.add("reset", rate=0.5)
        return [_outcome(f"http://{proxy.host}:{proxy.port}") for _ in range(16)]

    first = outcomes(1)
    assert first == outcomes(1)
    assert first != outcomes(2)
    assert {"ok", "reset"} == set(first)


def test_refuse_all_closes_the_port_and_clear_opens_it(proxy: ChaosProxy, url: str) -> None:
    proxy.add("refuse")
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((proxy.host, proxy.port))
    assert proxy.stats.refuse == 1
    proxy.clear()
    assert requests.get(url).content == BODY


def test_refuse_some_resets_them_before_a_byte(proxy: ChaosProxy, url: str) -> None:
    proxy.add("refuse", every=2)
    assert [_outcome(url) for _ in range(4)] == ["ok", "reset", "ok", "reset"]
    assert (proxy.stats.refuse, proxy.stats.connections) == (2, 4)


def test_half_close_ends_one_direction_only(chaos_proxy: StartProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = chaos_proxy(*listener.getsockname())
        proxy.add("half_close", after_bytes=3)
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
            server, _ = listener.accept()
            with server:
                server.settimeout(10)
                server.sendall(b"answer")
                assert _read_all(client) == b"ans"
                client.sendall(b"still here")
                assert server.recv(100) == b"still here"
        assert proxy.stats.half_close == 1


def test_a_client_that_half_closes_still_gets_its_answer(chaos_proxy: StartProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = chaos_proxy(*listener.getsockname())
        proxy.add("delay", seconds=0.1)
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"question")
                client.shutdown(socket.SHUT_WR)
                assert _read_all(server) == b"question"
                server.sendall(b"answer")
            assert _read_all(client) == b"answer"


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_the_address_of_an_ipv6_server(chaos_proxy: StartProxy) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        proxy = chaos_proxy(*listener.getsockname(), seed=3)
        with socket.create_connection((proxy.host, proxy.port), timeout=10) as client:
            server, _ = listener.accept()
            with server:
                server.sendall(b"hello")
            assert _read_all(client) == b"hello"


def test_an_address_with_too_many_parts_is_refused(chaos_proxy: StartProxy) -> None:
    with pytest.raises(TypeError, match=r"takes a host and a port, or \*server\.server_address"):
        chaos_proxy("127.0.0.1", 80, 1, 2, 3)


def test_a_server_that_is_down(chaos_proxy: StartProxy, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, port = listener.getsockname()
    proxy = chaos_proxy("127.0.0.1", port)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"http://{proxy.host}:{proxy.port}", timeout=10)
    assert proxy.stats.unreachable == 1
    error = capfd.readouterr().err
    assert f"chaos_proxy: cannot reach the server at 127.0.0.1:{port}: [Errno 111] Connection refused" in error


def _outcome(url: str) -> str:
    try:
        assert requests.get(url, timeout=10).content == BODY
    except requests.ConnectionError:
        return "reset"
    return "ok"


def _read_all(end: socket.socket) -> bytes:
    received = b""
    while part := end.recv(65536):
        received += part
    return received
