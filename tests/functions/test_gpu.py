"""Functions on GPUs of a pool, with soft GPUs: the handler knows nothing of dxpu."""

import concurrent.futures
import os
import subprocess
import time

import pytest
from botocore.exceptions import ClientError
from conftest import HANDLERS, Service, deploy, dxpu, free_port, invoke, until

DECLARED = {"Variables": {"DXPU_GPU_MEMORY_MB": "200"}}


@pytest.fixture(scope="module")
def pool(folder):
    """A manager and one box with two soft GPUs of 512 MiB."""
    state = folder / "pool"
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "xdg"), "XDG_CACHE_HOME": str(folder / "cache")}
    with open(folder / "up.log", "w") as log:
        process = subprocess.Popen(
            [dxpu(), "up", "--boxes", "1", "--gpus", "2", "--memory", "512MiB", "--state-dir", str(state)]
            + ["--listen", f"127.0.0.1:{free_port()}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    credential = state / "manager" / "admin.json"
    environment["DXPU_CREDENTIAL"] = str(credential)

    def ready():
        assert process.poll() is None, (folder / "up.log").read_text()[-3000:]
        if not credential.exists():
            return False
        shown = subprocess.run([dxpu(), "gpu", "ls"], env=environment, capture_output=True, text=True).stdout
        return shown.count("free") >= 2

    until(ready, 90)
    yield environment
    process.terminate()
    process.wait(timeout=30)


@pytest.fixture(scope="module")
def gpu_service(folder, pool):
    running = Service(folder, "--gpus", "2", "--sharing", "2", "--credential", pool["DXPU_CREDENTIAL"], environment=pool)
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


def test_gpus_go_back_to_the_pool(ada, gpu_service, pool):
    ada.delete_function(FunctionName="add")

    def none_is_held():
        shown = subprocess.run([dxpu(), "gpu", "ls"], env=pool, capture_output=True, text=True).stdout
        return shown.count("free") >= 2

    until(none_is_held, 60)
