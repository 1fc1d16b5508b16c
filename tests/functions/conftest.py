"""A service of functions with real processes, and AWS's own client: boto3 knows nothing of dxpu."""

import io
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile

import boto3
import botocore.config
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
HANDLERS = pathlib.Path(__file__).parent / "handlers"


def dxpu():
    """The binary under test."""
    path = pathlib.Path(os.environ.get("DXPU_BIN", ROOT / "target/release/dxpu"))
    assert path.exists(), f"no dxpu at {path}; build it or set DXPU_BIN"
    return str(path.resolve())


def is_open_to_all(path):
    """Whether every user can reach a file: instances have users of their own."""
    parts = [pathlib.Path(path).resolve(), *pathlib.Path(path).resolve().parents]
    return all(part.stat().st_mode & 0o001 for part in parts)


# The interpreter of instances. Users other than root cannot reach one below /root; another can be named.
PYTHON = os.environ.get("FUNCTIONS_PYTHON", sys.executable)


def has_private_users():
    """Whether instances can have users of their own: root gives them, and they must reach the interpreter."""
    places = [PYTHON, pathlib.Path(PYTHON).absolute().parent, dxpu()]
    return os.geteuid() == 0 and all(is_open_to_all(place) for place in places)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def zipped(**files):
    """A zip file; names have `__` for a dot."""
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__", "."), text)
    return target.getvalue()


class Service:
    """`dxpu functions`, which can be killed and started again."""

    def __init__(self, folder, *options, environment=None, store=None, tls=None):
        """`store`: as `--store` wants it. `tls`: certificate, key, and the authority that clients trust."""
        self.folder, self.options = folder, options
        folder.mkdir(exist_ok=True)
        folder.chmod(0o711)
        self.store = ["--store", store] if store else ["--state-dir", str(folder / "state")]
        self.tls = tls
        if tls:
            self.options += ("--tls-cert", str(tls[0]), "--tls-key", str(tls[1]))
        self.port = free_port()
        self.environment = {**os.environ, "XDG_STATE_HOME": str(folder / "xdg"), "XDG_CACHE_HOME": str(folder / "cache")}
        self.environment.update(environment or {})
        self.log = open(folder / "functions.log", "a")
        self.is_private = has_private_users()
        self.process = None
        self.start()

    def start(self):
        same_user = [] if self.is_private else ["--same-user"]
        self.process = subprocess.Popen(
            [dxpu(), "functions", "--listen", f"127.0.0.1:{self.port}", *self.store]
            + ["--run-dir", str(self.folder / "run"), "--python", PYTHON, *same_user, *self.options],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("functions listening at "), (self.folder / "functions.log").read_text()[-3000:]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=30) == 0

    def url(self):
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def new_key(self, tenant):
        told = subprocess.run(
            [dxpu(), "functions", "new-key", "--tenant", tenant, *self.store],
            env=self.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        return dict(line.split("=", 1) for line in told.split())

    def client(self, tenant="ada", key=None):
        key = key or self.new_key(tenant)
        client = boto3.client(
            "lambda",
            endpoint_url=self.url(),
            verify=str(self.tls[2]) if self.tls and self.tls[2] else None,
            region_name="pool",
            aws_access_key_id=key["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=key["AWS_SECRET_ACCESS_KEY"],
            config=botocore.config.Config(retries={"max_attempts": 0}, read_timeout=120, max_pool_connections=32),
        )
        client.dxpu_key = key
        return client

    def dxpu(self, key, *words, **options):
        environment = {**self.environment, **key, "AWS_ENDPOINT_URL": self.url(), "AWS_DEFAULT_REGION": "pool"}
        if self.tls:
            environment["AWS_CA_BUNDLE"] = str(self.tls[2])
        return subprocess.run([dxpu(), "function", *words], env=environment, capture_output=True, text=True, **options)

    def reports(self, client):
        """All reports of the client's tenant."""
        return self.get(client, "reports")["Reports"]

    def get(self, client, path):
        """What Lambda has no operation for."""
        import botocore.auth
        import botocore.awsrequest
        import botocore.credentials
        import urllib.request

        url = f"{self.url()}/dxpu/v1/{path}"
        request = botocore.awsrequest.AWSRequest("GET", url)
        key = client.dxpu_key
        credentials = botocore.credentials.Credentials(key["AWS_ACCESS_KEY_ID"], key["AWS_SECRET_ACCESS_KEY"])
        botocore.auth.SigV4Auth(credentials, "lambda", "pool").add_auth(request)
        with urllib.request.urlopen(urllib.request.Request(url, headers=dict(request.headers)), timeout=60) as answer:
            return json.load(answer)


def deploy(client, name, code, **settings):
    settings = {"Timeout": 20, "MemorySize": 256, **settings}
    return client.create_function(
        FunctionName=name,
        Runtime="python3.11",
        Role="arn:aws:iam::0:role/any",
        Handler="app.handler",
        Code={"ZipFile": code if isinstance(code, bytes) else zipped(app__py=code)},
        **settings,
    )


def invoke(client, name, payload, **more):
    """The answer, and whether it is the function's error."""
    answer = client.invoke(FunctionName=name, Payload=json.dumps(payload), **more)
    return json.loads(answer["Payload"].read()), answer.get("FunctionError")


@pytest.fixture(scope="module")
def folder():
    # Not pytest's own folders: users of instances must be able to pass through.
    path = pathlib.Path(tempfile.mkdtemp(prefix="dxpu-functions-"))
    path.chmod(0o711)
    yield path
    if not os.environ.get("FUNCTIONS_KEEP"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def service(folder):
    running = Service(folder, "--retry-after", "200ms", "--keep-warm", "60s")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def ada(service):
    return service.client("ada")


def until(holds, seconds=60):
    """Waits for a condition and returns its value."""
    end = time.time() + seconds
    while time.time() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")


@pytest.fixture(scope="module")
def pool(folder):
    """A manager and one box with two soft GPUs of 512 MiB; the environment of commands that ask it."""
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
