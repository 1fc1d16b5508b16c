"""What the gateway costs for a warm synchronous invocation over loopback, beyond the handler itself.

    .venv/bin/python bench/functions/overhead.py --dxpu target/release/dxpu [--count 2000] [--threads 8]

Prints, as JSON, the round trip of one client (median, p99), invocations a second with several clients, and the processor time
per invocation of the gateway and of the instances. Processor time does not depend on what else the machine does.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

import botocore.auth
import botocore.awsrequest
import botocore.credentials

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/functions"))


def cpu_seconds(pid):
    """Processor time of a process, and of its children that have ended."""
    words = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def instances(folder):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"LAMBDA_TASK_ROOT={folder}/run/".encode() in open(f"/proc/{pid}/environ", "rb").read():
                yield int(pid)
        except OSError:
            pass


class Client:
    """One connection that is kept, with requests signed as botocore does."""

    def __init__(self, port, key):
        self.port = port
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        credentials = botocore.credentials.Credentials(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
        self.auth = botocore.auth.SigV4Auth(credentials, "lambda", "pool")
        self.signed_at = 0

    def invoke(self):
        path = "/2015-03-31/functions/noop/invocations"
        if time.time() - self.signed_at > 60:
            request = botocore.awsrequest.AWSRequest("POST", f"http://127.0.0.1:{self.port}{path}", data=b"{}")
            self.auth.add_auth(request)
            self.headers, self.signed_at = dict(request.headers), time.time()
        began = time.perf_counter()
        self.connection.request("POST", path, body=b"{}", headers=self.headers)
        answer = self.connection.getresponse()
        body = answer.read()
        assert answer.status == 200 and body == b"1", body
        return time.perf_counter() - began


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--dxpu", required=True)
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--threads", type=int, default=8)
    given = arguments.parse_args()
    os.environ["DXPU_BIN"] = given.dxpu
    from conftest import Service, deploy

    folder = pathlib.Path(tempfile.mkdtemp(prefix="dxpu-functions-"))
    folder.chmod(0o711)
    service = Service(folder)
    try:
        boto = service.client("ada")
        deploy(boto, "noop", "def handler(event, context): return 1")
        client = Client(service.port, boto.dxpu_key)
        for _ in range(50):
            client.invoke()
        gateway = cpu_seconds(service.process.pid)
        inside = sum(map(cpu_seconds, instances(folder)))
        times = sorted(client.invoke() for _ in range(given.count))
        gateway = cpu_seconds(service.process.pid) - gateway
        inside = sum(map(cpu_seconds, instances(folder))) - inside
        clients = [Client(service.port, boto.dxpu_key) for _ in range(given.threads)]
        for other in clients:
            other.invoke()
        with concurrent.futures.ThreadPoolExecutor(given.threads) as threads:
            began = time.perf_counter()
            list(threads.map(lambda other: [other.invoke() for _ in range(given.count // given.threads)], clients))
            rate = given.count // given.threads * given.threads / (time.perf_counter() - began)
        print(
            json.dumps(
                {
                    "round_trip_ms": {"median": statistics.median(times) * 1e3, "p99": times[len(times) * 99 // 100] * 1e3},
                    "per_second": rate,
                    "gateway_cpu_ms": gateway / given.count * 1e3,
                    "instance_cpu_ms": inside / given.count * 1e3,
                    "load": os.getloadavg()[0],
                },
                indent=1,
            )
        )
    finally:
        service.kill()


if __name__ == "__main__":
    main()
