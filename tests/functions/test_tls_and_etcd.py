"""TLS for clients, and a store on etcd: boto3 and `dxpu function` over https, and a service that is killed."""

import http.client
import json
import shutil
import subprocess
import urllib.request

import botocore.exceptions
import pytest
from conftest import Service, deploy, free_port, invoke, until


@pytest.fixture(scope="module")
def certificate(folder):
    """A certificate for 127.0.0.1 that an authority made here has signed, its key, and the authority."""
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    made = folder / "tls"
    made.mkdir()

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=made, check=True, capture_output=True)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", "-days", "2")
    openssl("req", *new, "-keyout", "own.key", "-out", "own.csr", "-subj", "/CN=functions")
    (made / "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "own.csr", "-out", "own.pem", *signed)
    (made / "own.key").chmod(0o600)
    return made / "own.pem", made / "own.key", made / "ca.pem"


def test_clients_speak_tls_and_refuse_a_stranger(folder, certificate):
    service = Service(folder / "over-tls", tls=certificate)
    try:
        client = service.client("ada")
        deploy(client, "one", "def handler(event, context): return event")
        assert invoke(client, "one", {"a": 1})[0] == {"a": 1}
        shown = service.dxpu(client.dxpu_key, "ls")
        assert shown.returncode == 0 and shown.stdout.startswith("one "), shown.stderr
        key = client.dxpu_key
        service.tls = (None, None, None)
        with pytest.raises(botocore.exceptions.SSLError):
            service.client(key=key).list_functions()
        # In the clear, nothing is served.
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{service.port}/", timeout=5)
    finally:
        service.stop()


def test_a_key_of_another_certificate_is_refused_in_words(folder, certificate):
    wrong = (certificate[0], folder / "tls" / "ca.key", certificate[2])
    (folder / "tls" / "ca.key").chmod(0o600)
    with pytest.raises(AssertionError) as refused:
        Service(folder / "wrong-key", tls=wrong)
    assert "--tls-cert and --tls-key" in str(refused.value)


@pytest.fixture(scope="module")
def etcd(folder):
    if not shutil.which("etcd"):
        pytest.skip("no etcd")
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    data = folder / "etcd"
    with open(folder / "etcd.log", "wb") as log:
        process = subprocess.Popen(
            ["etcd", "--name", "e0", "--data-dir", str(data), "--listen-client-urls", client, "--advertise-client-urls", client]
            + ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e0={peer}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def healthy():
        assert process.poll() is None, (folder / "etcd.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(client + "/health", timeout=2) as answer:
                return json.load(answer)["health"] == "true"
        except OSError:
            return False

    until(healthy)
    yield f"etcd:{client}"
    process.kill()
    process.wait()


def test_what_was_accepted_is_in_etcd_when_everything_here_is_lost(folder, etcd):
    """The second service has none of the first one's files: code, keys and invocations come from etcd."""
    first = Service(folder / "first", "--retry-after", "200ms", store=etcd)
    client = first.client("ada")
    log = folder / "etcd-told"
    log.touch()
    log.chmod(0o666)
    deploy(client, "mark", f"def handler(event, context): open({str(log)!r}, 'a').write(str(event['n']) + chr(10))")
    client.put_function_concurrency(FunctionName="mark", ReservedConcurrentExecutions=1)
    ids = []
    for number in range(40):
        answer = client.invoke(FunctionName="mark", InvocationType="Event", Payload=json.dumps({"n": number}))
        ids.append(answer["ResponseMetadata"]["RequestId"])
    first.kill()
    shutil.rmtree(folder / "first")
    second = Service(folder / "second", "--retry-after", "200ms", store=etcd)
    try:
        client = second.client(key=client.dxpu_key)
        reports = until(lambda: (lambda found: found if len(found) >= 40 else None)(second.reports(client)))
        assert sorted(report["id"] for report in reports) == sorted(ids)
        assert set(map(int, log.read_text().split())) == set(range(40))
    finally:
        second.stop()
