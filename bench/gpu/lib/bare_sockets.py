"""What bare TCP streams move on this machine: memory to memory, between two processes, a thread a stream.

Only where `dxpu bench api` cannot run (it steps a program to count instructions, which some machines forbid). Blocks of a mebibyte keep
Python out of the figure: nearly all time is spent in the kernel, without the interpreter's lock.
"""

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BLOCK_BYTES = 1 << 20
# A stream that stands still for so long has lost its other end.
STALL_SECONDS = 20


def measure(megabytes, streams, repetitions=3):
    """Gigabytes a second over all streams; the median of some repetitions."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=streams)
    number = listener.fileno()
    server = subprocess.Popen([sys.executable, os.path.abspath(__file__), str(number), str(streams)], pass_fds=[number])
    address = listener.getsockname()
    listener.close()
    share = megabytes * BLOCK_BYTES // streams
    connections = []
    try:
        connections += [socket.create_connection(address, STALL_SECONDS) for _ in range(streams)]
        # Every byte comes from a place of its own, touched before the clock starts.
        sources = [memoryview(bytearray(b"\x5a" * share)) for _ in range(streams)]
        speeds = sorted(_round(connections, sources, share) for _ in range(repetitions))
    finally:
        for connection in connections:
            connection.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    return speeds[len(speeds) // 2]


def _round(connections, sources, share):
    def send(connection, source):
        connection.sendall(share.to_bytes(8, "little"))
        for at in range(0, share, BLOCK_BYTES):
            connection.sendall(source[at : at + BLOCK_BYTES])
        if not connection.recv(1):
            raise ConnectionError("the other end is gone")

    began = time.perf_counter()
    _together(send, list(zip(connections, sources, strict=True)))
    return share * len(connections) / (time.perf_counter() - began) / 1e9


def serve(number, streams):
    """The other end: receives into memory and confirms each batch with a byte, until the connections end."""
    listener = socket.socket(fileno=number)
    listener.settimeout(STALL_SECONDS)

    def receive(connection):
        memory = memoryview(bytearray(0))
        while length := connection.recv(8, socket.MSG_WAITALL):
            share, at = int.from_bytes(length, "little"), 0
            if len(memory) < share:
                memory = memoryview(bytearray(share))
            while at < share:
                count = connection.recv_into(memory[at : min(share, at + BLOCK_BYTES)])
                if count == 0:
                    return
                at += count
            connection.sendall(b"\x01")

    _together(receive, [(listener.accept()[0],) for _ in range(streams)])


def _together(body, all_arguments):
    """Calls `body` with each of the arguments in threads of their own; the first error is the caller's."""
    with ThreadPoolExecutor(max(1, len(all_arguments))) as pool:
        list(pool.map(lambda arguments: body(*arguments), all_arguments))


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
