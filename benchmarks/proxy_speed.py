"""Bytes per second through a chaos proxy without faults, beside a direct connection in the same run.

    python benchmarks/proxy_speed.py

The server, the proxy and the client are three processes. The direct connection is the floor: what this machine and
this client can do at all. Runs alternate, so that a busy moment of the machine hits both.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import time

from pytest_rlstability.kits.proxy.handle import ChaosProxy

_CHUNK_BYTES = 256 * 1024


def serve(listener: socket.socket, total: int) -> None:
    """Send *total* bytes to everyone who connects."""
    chunk = bytes(_CHUNK_BYTES)
    while True:
        client, _ = listener.accept()
        with client:
            for _ in range(total // _CHUNK_BYTES):
                client.sendall(chunk)


def megabytes_per_second(host: str, port: int, total: int) -> float:
    buffer = bytearray(_CHUNK_BYTES)
    with socket.create_connection((host, port)) as connection:
        began = time.perf_counter()
        received = 0
        while count := connection.recv_into(buffer):
            received += count
    seconds = time.perf_counter() - began
    if received != total:
        raise RuntimeError(f"received {received} bytes of {total}")
    return received / seconds / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=256, help="per round")
    arguments = parser.parse_args()
    total = arguments.megabytes * 1024 * 1024
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=serve, args=(listener, total), daemon=True)
    server.start()
    host, port = listener.getsockname()
    direct, proxied = [], []
    try:
        with ChaosProxy(host, port) as proxy:
            for _ in range(arguments.rounds):
                direct.append(megabytes_per_second(host, port, total))
                proxied.append(megabytes_per_second(proxy.host, proxy.port, total))
    finally:
        server.terminate()
        server.join()
    floor, through = statistics.median(direct), statistics.median(proxied)
    print(f"direct      {floor:7.0f} MB/s (median of {arguments.rounds})")
    print(f"chaos_proxy {through:7.0f} MB/s, {through / floor:.0%} of direct")
    print(json.dumps({"direct_mb_s": round(floor), "proxy_mb_s": round(through), "ratio": round(through / floor, 3)}))


if __name__ == "__main__":
    main()
