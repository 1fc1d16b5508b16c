"""Asynchronous invocations with everything killed: executed at least once, reported exactly once, none lost.

The service, instances, the box's agent, its workers, the whole box and the manager are killed at random. Half of the
invocations use a GPU. `FUNCTIONS_ASYNC=1000` sets their number; `make test` takes fewer.
"""

import collections
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import botocore.exceptions
import pytest
from conftest import HANDLERS, Service, deploy, dxpu, until, zipped

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "stories"))
import kit  # noqa: E402
import pool as pools  # noqa: E402

COUNT = int(os.environ.get("FUNCTIONS_ASYNC", "100"))
SEED = int(os.environ.get("FUNCTIONS_SEED", "7"))

MARK = """
import random, time
USE
def handler(event, context):
    time.sleep(random.random() * 0.02)
    n = event["number"]
    assert double(n) == 2 * n
    with open(event["log"], "a") as log:
        log.write(f"{n}\\n")
    if n % 10 == 9:
        raise RuntimeError("one of ten fails for good")
    return n
"""
ON_CPU = "double = lambda n: n + n"
ON_GPU = "import gpu\ndouble = lambda n: gpu.handler({'a': [n] * 32, 'b': [n] * 32}, None)['sum'][7]"


@pytest.fixture()
def all_of_it(folder):
    """A manager, a box with two soft GPUs, and the service, each of which can be killed and started again."""
    kit.dxpu, kit.scratch = dxpu(), str(folder)
    with pools.Pool() as pool:
        box = pool.box("box", "--soft", "2", "--memory", "256MiB")
        # GPUs are granted before anything is killed.
        kit.until(lambda: f"two GPUs are free: {pool.logs()}", lambda: sum(gpu["state"] == "free" for gpu in pool.gpus().values()) == 2, 90)
        options = ("--retry-after", "100ms", "--instances", "6", "--gpus", "2", "--sharing", "2", "--credential", pool.borrower)
        service = Service(folder, *options, environment=pool.environment)
        yield service, pool, box
        service.stop()
    # A box that was killed while it started a worker has not written down which.
    end(list(left(folder)))


def left(folder):
    """Workers of boxes with this folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
        except OSError:
            continue
        if b"--by-lease" in words and any(word.startswith(f"{folder}/".encode()) for word in words):
            yield int(pid)


def instances(folder):
    """Processes of handlers of the service with this folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"LAMBDA_TASK_ROOT={folder}/run/".encode() in open(f"/proc/{pid}/environ", "rb").read():
                yield int(pid)
        except OSError:
            pass


def end(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return len(pids)


class Killer:
    """Kills one thing after another, each kind at least once, and starts again what does not come back by itself."""

    def __init__(self, service, pool, box, folder):
        manager = pool.managers[0]

        def again(part, kill):
            kill()
            part.start()
            return 1

        self.ways = {
            "service": (30, lambda: again(service, service.kill)),
            "instance": (30, lambda: end(list(instances(folder))[:2])),
            "worker": (12, lambda: end(box.workers()[:1])),
            "agent": (12, lambda: again(box, box.kill_agent)),
            "box": (6, lambda: again(box, box.end)),
            "manager": (10, lambda: again(manager, manager.kill)),
        }
        self.kills = collections.Counter()
        self.dice = random.Random(SEED)

    def missing(self):
        return [kind for kind in self.ways if self.kills[kind] == 0]

    def strike(self):
        weights = [weight for weight, _ in self.ways.values()]
        kind = self.dice.choice(self.missing()) if self.missing() else self.dice.choices(list(self.ways), weights)[0]
        self.kills[kind] += self.ways[kind][1]()


def send(client, log, accepted):
    """Sends until all are accepted."""
    number = 0
    while number < COUNT:
        payload = {"number": number, "log": str(log)}
        name = "on-gpu" if number % 2 else "on-cpu"
        try:
            answer = client.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(payload))
            assert answer["StatusCode"] == 202
            accepted[answer["ResponseMetadata"]["RequestId"]] = number
            number += 1
        except botocore.exceptions.BotoCoreError:
            # Not accepted, as far as this client knows: it sends again.
            time.sleep(0.05)
        if number % 20 == 0:
            time.sleep(0.3)


def test_each_accepted_invocation_is_executed_and_reported_once_whatever_is_killed(all_of_it, folder):
    service, pool, box = all_of_it
    client = service.client("ada")
    deploy(client, "on-cpu", MARK.replace("USE", ON_CPU))
    code = zipped(app__py=MARK.replace("USE", ON_GPU), gpu__py=(HANDLERS / "gpu.py").read_text())
    deploy(client, "on-gpu", code, Environment={"Variables": {"DXPU_GPU_MEMORY_MB": "100"}}, MemorySize=1024)
    log = folder / "executed"
    log.touch()
    log.chmod(0o666)
    accepted = {}
    began = time.time()
    sender = threading.Thread(target=send, args=(client, log, accepted))
    sender.start()
    killer = Killer(service, pool, box, folder)
    while sender.is_alive() or killer.missing():
        time.sleep(killer.dice.uniform(0.3, 1.2))
        killer.strike()
    sender.join()
    assert len(accepted) == COUNT

    def reported():
        reports = service.reports(client)
        return reports if {report["id"] for report in reports} >= set(accepted) else None

    reports = until(reported, 120 + COUNT / 4)
    per_id = collections.Counter(report["id"] for report in reports)
    assert all(per_id[request] == 1 for request in accepted), "reported exactly once"
    executed = collections.Counter(int(line) for line in log.read_text().split())
    by_id = {report["id"]: report for report in reports}
    lost = 0
    for request, number in accepted.items():
        report = by_id[request]
        if report["succeeded"]:
            assert json.loads(report["answer"]) == number and executed[number] >= 1, report
        elif number % 10 != 9 or "one of ten" not in report["answer"]:
            # Its instances or its GPU were killed each time.
            lost += 1
            assert report["attempts"] == 3 and any(word in report["answer"] for word in ("killed", "exited", "CUDA", "libcuda")), report
        if not report["succeeded"]:
            assert json.loads(report["payload"])["number"] == number
    assert lost <= COUNT // 10, f"{lost} failed three times"
    failed = service.dxpu(client.dxpu_key, "failed").stdout
    assert failed.count("one of ten fails for good") >= COUNT // 10 - lost
    seconds = time.time() - began
    print(f"accepted {len(accepted)}, executions {sum(executed.values())}, failed three times by kills {lost}, ", end="")
    print(f"kills {dict(killer.kills)}, {seconds:.0f} s")
