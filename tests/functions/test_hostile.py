"""What strangers and careless people send: refused or contained, in words."""

import io
import json
import time
import urllib.error
import urllib.request
import zipfile

import pytest
from botocore.exceptions import ClientError
from conftest import deploy, invoke, until, zipped

FINE = "def handler(event, context): return 'fine'"


def code_of(error):
    return error.value.response["Error"]["Code"]


def test_a_wrong_signature_is_refused(service, ada):
    wrong = {**ada.dxpu_key, "AWS_SECRET_ACCESS_KEY": "0" * 40}
    with pytest.raises(ClientError) as error:
        service.client(key=wrong).list_functions()
    assert code_of(error) == "InvalidSignatureException"
    unknown = {**ada.dxpu_key, "AWS_ACCESS_KEY_ID": "DXPUNOBODY"}
    with pytest.raises(ClientError) as error:
        service.client(key=unknown).list_functions()
    assert code_of(error) == "UnrecognizedClientException"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{service.port}/2015-03-31/functions", timeout=10)
    assert refused.value.code == 403


def test_another_tenant_sees_nothing(service, ada):
    deploy(ada, "private", FINE)
    eve = service.client("eve")
    assert eve.list_functions()["Functions"] == []
    for ask in (eve.invoke, eve.get_function, eve.delete_function):
        with pytest.raises(ClientError) as error:
            ask(FunctionName="private")
        assert code_of(error) == "ResourceNotFoundException"
    with pytest.raises(ClientError) as error:
        eve.invoke(FunctionName="arn:aws:lambda:pool:ada:function:private")
    assert code_of(error) == "ResourceNotFoundException"
    assert invoke(ada, "private", {}) == ("fine", None)


PEEK = """
import glob, os, socket, urllib.request
def handler(event, context):
    seen = []
    for pattern in event["patterns"]:
        for path in glob.glob(pattern, recursive=True):
            try:
                open(path).read(); seen.append(path)
            except OSError:
                pass
    api = os.environ["AWS_LAMBDA_RUNTIME_API"]
    stolen = []
    for line in open("/proc/net/tcp"):
        words = line.split()
        if len(words) < 4 or words[3] != "0A" or not words[1].startswith("0100007F:"):
            continue
        port = int(words[1].split(":")[1], 16)
        if api.endswith(f":{port}"):
            continue
        try:
            url = f"http://127.0.0.1:{port}/2018-06-01/runtime/invocation/next"
            stolen.append(urllib.request.urlopen(url, timeout=0.3).status)
        except Exception:
            pass
    return {"seen": seen, "stolen": stolen, "processes": [p for p in os.listdir("/proc") if p.isdigit()]}
"""


def test_a_function_reads_no_other_tenant_s_code_and_takes_no_other_s_work(service, ada, folder):
    if not service.is_private:
        pytest.skip("without root all instances have one user")
    deploy(ada, "secret", "KEY = 's3cret'\ndef handler(event, context): return 'ok'")
    invoke(ada, "secret", {})
    eve = service.client("eve")
    deploy(eve, "peek", PEEK)
    patterns = [f"{folder}/run/code/ada/**", f"{folder}/run/instances/*/*", f"{folder}/state/*", f"{folder}/run/gpus/**"]
    answer, error = invoke(eve, "peek", {"patterns": patterns})
    assert error is None, answer
    assert answer["seen"] == [] and answer["stolen"] == []
    assert invoke(ada, "secret", {}) == ("ok", None)


def test_a_hostile_payload_reaches_no_instance(ada):
    deploy(ada, "plain", "def handler(event, context): return len(str(event))")
    for payload in (b"{", b"\xff\xfe", b'{"a": }', b"nonsense"):
        with pytest.raises(ClientError) as error:
            ada.invoke(FunctionName="plain", Payload=payload)
        assert code_of(error) == "InvalidRequestContentException"
    deep, error = invoke(ada, "plain", json.loads("[" * 90 + "]" * 90))
    assert error is None, deep


def test_a_zip_file_writes_nothing_elsewhere(ada):
    for name in ("../evil.py", "/tmp/evil.py", "a/../../evil.py"):
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr(name, "x")
        with pytest.raises(ClientError) as error:
            deploy(ada, "evil", target.getvalue())
        assert code_of(error) == "InvalidParameterValueException"
    with pytest.raises(ClientError):
        deploy(ada, "evil", b"this is no zip file")


def test_a_function_that_never_ends_is_ended(ada):
    deploy(ada, "endless", "def handler(event, context):\n while True: pass", Timeout=1)
    began = time.time()
    answer, error = invoke(ada, "endless", {})
    assert error == "Unhandled" and "timed out after 1.00 seconds" in answer["errorMessage"]
    assert time.time() - began < 30


def test_a_function_that_eats_memory_ends_alone(ada):
    deploy(ada, "eater", "def handler(event, context):\n kept = []\n while True: kept.append(bytearray(8 << 20))", MemorySize=128)
    answer, error = invoke(ada, "eater", {})
    assert error == "Unhandled"
    assert "killed" in answer["errorMessage"] or answer["errorType"] == "MemoryError", answer
    deploy(ada, "modest", FINE)
    assert invoke(ada, "modest", {}) == ("fine", None)


FORK = """
import os, time
def handler(event, context):
    started = 0
    try:
        while started < 5000:
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            started += 1
    except OSError:
        pass
    return started
"""


def test_a_function_that_forks_without_end_is_contained_and_leaves_nothing(service, ada):
    if not service.is_private:
        pytest.skip("processes are counted by user, which needs root")
    deploy(ada, "forks", FORK, Timeout=20, MemorySize=512)
    answer, error = invoke(ada, "forks", {})
    assert error is not None or answer < 600, answer
    assert invoke(ada, "private", {}) == ("fine", None)
    ada.delete_function(FunctionName="forks")
    until(lambda: count_of("app.handler", "forks") == 0)


def count_of(word, name):
    """Processes of a function that live."""
    import os

    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = open(f"/proc/{pid}/environ", "rb").read()
        except OSError:
            continue
        found += f"AWS_LAMBDA_FUNCTION_NAME={name}\0".encode() in environment
    return found


def test_a_crash_loop_is_contained(ada):
    deploy(ada, "crash", "import os\nos._exit(3)")
    began = time.time()
    for _ in range(3):
        answer, error = invoke(ada, "crash", {})
        assert error == "Unhandled" and "exit status 3" in answer["errorMessage"], answer
    assert time.time() - began < 60
    ada.update_function_code(FunctionName="crash", ZipFile=zipped(app__py=FINE))
    assert invoke(ada, "crash", {}) == ("fine", None)
