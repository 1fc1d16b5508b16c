"""Functions that outlive what happens to their GPU, and move from a busy GPU to an idle one while they run."""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import urllib.request

import pytest
from conftest import HANDLERS, Service, deploy, dxpu, free_port, invoke, until

ROUNDS = 900
SURVIVES = {"Variables": {"DXPU_GPU_MEMORY_MB": "200", "DXPU_SURVIVE": "plain"}}


def ask(pool, *words):
    return subprocess.run([dxpu(), *words], env=pool, capture_output=True, text=True).stdout


def free(pool):
    """How many GPUs are free."""
    return ask(pool, "gpu", "ls").count("free")


@pytest.fixture(scope="module")
def lasting(folder, pool):
    """A service whose metrics are read at its attribute `metrics`."""
    port = free_port()
    options = ("--gpus", "2", "--sharing", "2", "--gpu-keep", "3s", "--keep-warm", "2s", "--balance-after", "1s")
    credential = ("--credential", pool["DXPU_CREDENTIAL"], "--metrics", f"127.0.0.1:{port}")
    running = Service(folder / "lasting", *options, *credential, environment=pool)
    running.metrics = f"http://127.0.0.1:{port}/metrics"
    yield running
    running.stop()


@pytest.fixture(scope="module")
def ada(lasting):
    client = lasting.client("ada")
    code = (HANDLERS / "gpu.py").read_text()
    deploy(client, "sum", code, Environment=SURVIVES, Timeout=120, MemorySize=1024)
    return client


@pytest.fixture(scope="module")
def undisturbed(ada):
    """The digest of a run that nothing happens to."""
    answer, error = invoke(ada, "sum", {"rounds": ROUNDS})
    assert error is None, answer
    return answer["digest"]


def counted(service, name):
    """The sum of a metric, and its values by label."""
    with urllib.request.urlopen(service.metrics, timeout=10) as answer:
        text = answer.read().decode()
    values = re.findall(rf"^{name}(?:{{[^}}]*=\"([^\"]*)\"}})? (\S+)$", text, re.M)
    return {label: float(value) for label, value in values}


def running(service):
    """How many instances have an invocation on each GPU, the busiest GPU first."""
    return sorted((int(count) for count in counted(service, "dxpu_functions_gpu_running").values()), reverse=True)


def all_is_quiet(service, pool):
    until(lambda: not counted(service, "dxpu_functions_gpu_instances") and free(pool) == 2, 60)


def test_one_of_two_that_share_a_gpu_moves_to_an_idle_one_while_it_runs(lasting, ada, pool, undisturbed):
    all_is_quiet(lasting, pool)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        both = [threads.submit(invoke, ada, "sum", {"rounds": ROUNDS}) for _ in range(2)]
        until(lambda: running(lasting) == [2], 30)
        until(lambda: running(lasting) == [1, 1] and counted(lasting, "dxpu_functions_moves_total")["moved"] == 1, 30)
        answers = [one.result() for one in both]
    for answer, error in answers:
        assert error is None and answer["digest"] == undisturbed, answer
    assert counted(lasting, "dxpu_functions_moves_total") == {"moved": 1, "refused": 0}


def test_balanced_gpus_stay_as_they_are(lasting, ada, undisturbed):
    before = counted(lasting, "dxpu_functions_moves_total")
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        both = [threads.submit(invoke, ada, "sum", {"rounds": ROUNDS}) for _ in range(2)]
        answers = [one.result() for one in both]
    assert all(error is None and answer["digest"] == undisturbed for answer, error in answers), answers
    moved = counted(lasting, "dxpu_functions_moves_total")["moved"] - before["moved"]
    # Both instances are warm and each has a GPU; if one had ended meanwhile, its successor may have had to move once.
    assert moved <= 1


def busy_worker(folder, pool):
    """The process that serves the GPU of the one lease."""
    [lease] = [lease for lease in json.loads(ask(pool, "lease", "ls", "--output", "json")) if lease["state"] == "granted"]
    gpu = lease["grants"][0]["gpu"]
    slot = gpu.rsplit("/", 1)[1]
    [file] = (folder / "pool").rglob(f"slot-{slot}/worker.json")
    return gpu, json.loads(file.read_text())["pid"]


def children(pid):
    """Processes that a process has started."""
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def disturbed(lasting, ada, pool, disturb):
    """Invokes, has something happen when the program is protected, and returns the answer."""
    all_is_quiet(lasting, pool)
    resumed = counted(lasting, "dxpu_functions_resumes_total")[""]
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        one = threads.submit(invoke, ada, "sum", {"rounds": ROUNDS})
        until(lambda: running(lasting) == [1], 30)
        time.sleep(2)
        disturb()
        answer = one.result()
    assert counted(lasting, "dxpu_functions_resumes_total")[""] > resumed
    return answer


def test_an_invocation_outlives_its_worker(lasting, ada, pool, folder, undisturbed):
    answer, error = disturbed(lasting, ada, pool, lambda: os.kill(busy_worker(folder, pool)[1], signal.SIGKILL))
    assert error is None and answer["digest"] == undisturbed, answer


def test_an_invocation_outlives_its_session(lasting, ada, pool, folder, undisturbed):
    def kill():
        for session in children(busy_worker(folder, pool)[1]):
            os.kill(session, signal.SIGKILL)

    answer, error = disturbed(lasting, ada, pool, kill)
    assert error is None and answer["digest"] == undisturbed, answer


def test_an_invocation_outlives_its_gpu(lasting, ada, pool, folder, undisturbed):
    broken = []

    def break_it():
        broken.append(busy_worker(folder, pool)[0])
        ask(pool, "gpu", "break", broken[0])

    answer, error = disturbed(lasting, ada, pool, break_it)
    ask(pool, "gpu", "repair", broken[0])
    assert error is None and answer["digest"] == undisturbed, answer


def test_an_invocation_goes_on_beside_another_when_the_pool_has_no_gpu_left(lasting, ada, pool, undisturbed):
    all_is_quiet(lasting, pool)
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        both = [threads.submit(invoke, ada, "sum", {"rounds": ROUNDS}) for _ in range(2)]
        until(lambda: running(lasting) == [1, 1], 30)
        time.sleep(1)
        leases = json.loads(ask(pool, "lease", "ls", "--output", "json"))
        broken = leases[0]["grants"][0]["gpu"]
        ask(pool, "gpu", "break", broken)
        until(lambda: running(lasting)[0] == 2, 30)
        answers = [one.result() for one in both]
    ask(pool, "gpu", "repair", broken)
    for answer, error in answers:
        assert error is None and answer["digest"] == undisturbed, answer


def test_a_word_that_says_nothing_about_survival_is_refused(ada):
    from botocore.exceptions import ClientError

    wrong = {"Variables": {"DXPU_GPU_MEMORY_MB": "200", "DXPU_SURVIVE": "loose"}}
    with pytest.raises(ClientError) as refused:
        deploy(ada, "wrong", "def handler(event, context): return 1", Environment=wrong)
    assert "is no way to survive: write off, plain" in str(refused.value)
