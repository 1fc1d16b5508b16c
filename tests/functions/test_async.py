"""Asynchronous invocations with everything killed: executed at least once, reported exactly once, none lost.

`FUNCTIONS_ASYNC=1000` sets their number; `make test` takes fewer.
"""

import collections
import json
import os
import random
import signal
import threading
import time

import botocore.exceptions
import pytest
from conftest import Service, deploy, until

COUNT = int(os.environ.get("FUNCTIONS_ASYNC", "120"))
SEED = int(os.environ.get("FUNCTIONS_SEED", "7"))

MARK = """
import os, random, time
def handler(event, context):
    time.sleep(random.random() * 0.02)
    with open(event["log"], "a") as log:
        log.write(f"{event['number']}\\n")
    if event["number"] % 10 == 9:
        raise RuntimeError("one of ten fails for good")
    return event["number"]
"""


@pytest.fixture()
def killable(folder):
    running = Service(folder, "--retry-after", "100ms", "--instances", "6")
    yield running
    running.stop()


def instances(folder):
    """Processes of handlers of the service with this folder."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if f"LAMBDA_TASK_ROOT={folder}/run/".encode() in open(f"/proc/{pid}/environ", "rb").read():
                yield int(pid)
        except OSError:
            pass


def test_each_accepted_invocation_is_executed_and_reported_once_whatever_is_killed(killable, folder):
    dice = random.Random(SEED)
    client = killable.client("ada")
    deploy(client, "mark", MARK)
    log = folder / "executed"
    log.touch()
    log.chmod(0o666)
    accepted = {}
    is_over = threading.Event()

    def send():
        number = 0
        while number < COUNT:
            payload = {"number": number, "log": str(log)}
            try:
                answer = client.invoke(FunctionName="mark", InvocationType="Event", Payload=json.dumps(payload))
                assert answer["StatusCode"] == 202
                accepted[answer["ResponseMetadata"]["RequestId"]] = number
                number += 1
            except botocore.exceptions.BotoCoreError:
                # Not accepted, as far as this client knows: it sends again.
                time.sleep(0.05)
        is_over.set()

    sender = threading.Thread(target=send)
    sender.start()
    kills = collections.Counter()
    while not is_over.is_set() or kills["service"] < 2:
        time.sleep(dice.uniform(0.3, 1.0))
        if dice.random() < 0.4:
            killable.kill()
            kills["service"] += 1
            killable.start()
        else:
            for pid in list(instances(folder))[:2]:
                try:
                    os.kill(pid, signal.SIGKILL)
                    kills["instance"] += 1
                except ProcessLookupError:
                    pass
    sender.join()

    def reported():
        reports = killable.reports(client)
        return reports if {report["id"] for report in reports} >= set(accepted) else None

    reports = until(reported, 120 + COUNT / 5)
    assert kills["service"] >= 2
    per_id = collections.Counter(report["id"] for report in reports)
    assert all(per_id[request] == 1 for request in accepted), "reported exactly once"
    executed = collections.Counter(int(line) for line in log.read_text().split())
    assert all(executed[number] >= 1 for number in accepted.values()), "executed at least once"
    by_id = {report["id"]: report for report in reports}
    for request, number in accepted.items():
        report = by_id[request]
        if number % 10 == 9:
            assert not report["succeeded"] and report["attempts"] == 3 and json.loads(report["payload"])["number"] == number
        elif report["succeeded"]:
            assert json.loads(report["answer"]) == number
        else:
            # Its instances were killed three times.
            assert "killed" in report["answer"] or "exited" in report["answer"], report
    failed = killable.dxpu(client.dxpu_key, "failed").stdout
    assert failed.count("one of ten fails for good") >= COUNT // 10 - 1
    print(f"accepted {len(accepted)}, executions {sum(executed.values())}, kills {dict(kills)}")
