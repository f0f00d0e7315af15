"""The time that this machine takes to pass a byte from one process to another that sleeps."""

import os
import socket
import time

import numpy as np

PAUSE_S = 0.005  # before each measurement: long enough for an idle core to halt, as between a request's messages
COUNT = 300


def switch_ms() -> float:
    """Median time in ms of one way over TCP on the loopback address. Linux and macOS."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        child = os.fork()
        if child == 0:
            near.close()
            while far.recv(1):
                far.send(b"x")
            os._exit(0)
        far.close()
        times_s = [_round_trip_s(near) for _ in range(COUNT)]
    os.waitpid(child, 0)
    return 1000 * float(np.median(times_s)) / 2


def _round_trip_s(near: socket.socket) -> float:
    time.sleep(PAUSE_S)
    start_s = time.perf_counter()
    near.send(b"x")
    near.recv(1)
    return time.perf_counter() - start_s
