"""Functions on GPUs of a pool, with soft GPUs: the handler knows nothing of dxpu."""

import concurrent.futures
import json
import os
import signal
import subprocess
import time

import pytest
from botocore.exceptions import ClientError
from conftest import HANDLERS, Service, deploy, dxpu, invoke, until

DECLARED = {"Variables": {"DXPU_GPU_MEMORY_MB": "200"}}


@pytest.fixture(scope="module")
def gpu_service(folder, pool):
    # A tenant's: it may borrow, and it may not list the pool's GPUs.
    credential = folder / "functions.json"
    subprocess.run([dxpu(), "token", "create", "tenant/lab/functions", "--out", str(credential)], env=pool, check=True)
    running = Service(folder, "--gpus", "2", "--sharing", "2", "--credential", str(credential), environment=pool)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def ada(gpu_service):
    client = gpu_service.client("ada")
    deploy(client, "add", (HANDLERS / "gpu.py").read_text(), Environment=DECLARED, Timeout=60, MemorySize=1024)
    return client


def test_a_handler_adds_on_a_gpu_that_is_elsewhere(ada):
    event = {"a": list(range(32)), "b": [0.5] * 32}
    answer, error = invoke(ada, "add", event)
    assert error is None, answer
    assert answer["sum"] == [n + 0.5 for n in range(32)]


def test_an_instance_has_the_memory_that_it_declared_and_no_more(ada):
    assert invoke(ada, "add", {"take_mb": 150})[0] == {"code": 0}
    # 2: out of memory. The GPU has 512 MiB.
    assert invoke(ada, "add", {"take_mb": 250})[0] == {"code": 2}


def test_instances_share_gpus_and_all_answers_are_right(ada, pool):
    def one(number):
        return invoke(ada, "add", {"a": [number] * 32, "b": list(range(32))})

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        for number, (answer, error) in enumerate(threads.map(one, range(24))):
            assert error is None, answer
            assert answer["sum"] == [number + n for n in range(32)]
    shown = subprocess.run([dxpu(), "lease", "ls"], env=pool, capture_output=True, text=True).stdout
    assert 1 <= shown.count("functions of ada") <= 2, shown


def workers(folder):
    """The processes that serve the slots of the pool's box."""
    return [json.loads(file.read_text())["pid"] for file in (folder / "pool").rglob("slot-*/worker.json")]


def test_a_worker_that_was_killed_is_noticed_and_costs_no_further_invocation(ada, gpu_service, folder):
    event = {"a": [1] * 32, "b": [2] * 32}
    assert invoke(ada, "add", event)[1] is None

    def standing():
        return gpu_service.get(ada, "functions/add/status")

    until(lambda: standing()["Starting"] == 0 and standing()["Idle"] > 0)
    before = workers(folder)
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    # Instances that wait for work have lost their sessions: none of them may be given any.
    until(lambda: standing()["Idle"] == 0, 10)
    answer, error = invoke(ada, "add", event)
    assert error is None and answer["sum"] == [3] * 32, answer


def test_gpus_go_back_to_the_pool(ada, gpu_service, pool):
    ada.delete_function(FunctionName="add")

    def none_is_held():
        shown = subprocess.run([dxpu(), "gpu", "ls"], env=pool, capture_output=True, text=True).stdout
        return shown.count("free") >= 2

    until(none_is_held, 60)


@pytest.fixture(scope="module")
def one_gpu(folder, pool):
    """A service that may have one GPU of 512 MiB, with two instances on it."""
    options = ("--gpus", "1", "--sharing", "2", "--fit", "fewest-moves", "--credential", pool["DXPU_CREDENTIAL"])
    running = Service(folder / "one", *options, environment=pool)
    yield running
    running.stop()


def of_size(client, name, mb):
    declared = {"Variables": {"DXPU_GPU_MEMORY_MB": str(mb)}}
    deploy(client, name, (HANDLERS / "gpu.py").read_text(), Environment=declared, Timeout=60, MemorySize=1024)


def test_functions_of_different_sizes_share_a_gpu_and_the_third_waits(one_gpu, pool):
    client = one_gpu.client("ada")
    of_size(client, "small", 150)
    of_size(client, "large", 300)
    of_size(client, "third", 100)
    invoke(client, "small", {"take_mb": 1})
    invoke(client, "large", {"take_mb": 1})
    with concurrent.futures.ThreadPoolExecutor(3) as threads:
        held = [
            threads.submit(invoke, client, "small", {"hold_mb": 140, "seconds": 4}),
            threads.submit(invoke, client, "large", {"hold_mb": 280, "seconds": 6}),
        ]

        def busy(name):
            return one_gpu.get(client, f"functions/{name}/status")["Busy"] == 1

        until(lambda: busy("small") and busy("large"))
        shown = subprocess.run([dxpu(), "lease", "ls"], env=pool, capture_output=True, text=True).stdout
        assert shown.count("functions of ada") == 1, shown
        accepted = client.invoke(FunctionName="third", InvocationType="Event", Payload=b'{"take_mb": 90}')
        request = accepted["ResponseMetadata"]["RequestId"]
        found = until(lambda: one_gpu.get(client, f"invocations/{request}"))
        assert found["State"] == "Queued" and found["Ahead"] == 0 and found["ExpectedWaitMs"] >= 0, found
        told = client.invoke(FunctionName="third", InvocationType="DryRun")["ResponseMetadata"]["HTTPHeaders"]
        assert told["x-dxpu-queue-ahead"] == "1" and int(told["x-dxpu-expected-wait-ms"]) > 0, told
        listed = one_gpu.dxpu(client.dxpu_key, "ls").stdout
        assert any(line.startswith("third ") and "1 waiting; the next one has 1 before it" in line for line in listed.splitlines()), listed
        ends = [future.result()[0] for future in held]
    assert all(end["code"] == 0 for end in ends), ends
    report = until(lambda: [report for report in one_gpu.reports(client) if report["id"] == request])[0]
    assert report["succeeded"] and report["answer"] == '{"code": 0}'
    first_end = min(end["ended"] for end in ends)
    assert report["ended_ms"] / 1000 > first_end, "it had its place when another had given it up"


def test_each_has_what_it_declared_and_no_more_while_they_share(one_gpu):
    client = one_gpu.client("ada")
    for name, mb in (("small", 150), ("large", 300), ("third", 100)):
        assert invoke(client, name, {"take_mb": mb - 10})[0] == {"code": 0}
        # 2: out of memory, though the GPU has 512 MiB.
        assert invoke(client, name, {"take_mb": mb + 10})[0] == {"code": 2}


def test_the_next_instance_of_a_tenant_names_its_weights_and_another_tenant_s_sends_them(one_gpu):
    def instance(client, name):
        code = (HANDLERS / "weights.py").read_text()
        deploy(client, name, code, Environment=DECLARED, Timeout=60, MemorySize=1024)
        answer, error = invoke(client, name, {})
        assert error is None and answer["right"], answer
        return answer["sent"]

    weights, ada = 48 << 20, one_gpu.client("ada")
    assert instance(ada, "weights-1") > weights
    # The worker keeps them behind the back of the instance.
    time.sleep(2)
    assert instance(ada, "weights-2") < weights / 8
    assert instance(one_gpu.client("bob"), "weights-1") > weights


def test_another_tenant_has_the_gpu_to_itself_after_it_was_cleaned(one_gpu, pool):
    bob = one_gpu.client("bob")
    of_size(bob, "small", 150)
    assert invoke(bob, "small", {"take_mb": 140})[0] == {"code": 0}
    shown = subprocess.run([dxpu(), "lease", "ls"], env=pool, capture_output=True, text=True).stdout
    assert shown.count("functions of bob") == 1 and "functions of ada" not in shown, shown
