"""A manager with a box of two simulated GPUs, for judges that know nothing of dxpu but its documents."""

import json
import os
import pathlib
import subprocess
import threading
import time

import pytest
import requests

ROOT = pathlib.Path(__file__).resolve().parents[2]


def dxpu():
    """The binary under test."""
    path = pathlib.Path(os.environ.get("DXPU_BIN", ROOT / "target/release/dxpu"))
    assert path.exists(), f"no dxpu at {path}; build it or set DXPU_BIN"
    return str(path.resolve())


class Pool:
    """A running manager, and one who may do everything there."""

    def __init__(self, folder):
        self.folder = folder
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen(
            [dxpu(), "manager", "--name", "judged", "--listen", "127.0.0.1:0", "--state-dir", str(folder / "state")],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        line = self.process.stdout.readline()
        assert line.startswith("manager listening at "), line
        self.url = line.split()[-1]
        credential = json.loads((folder / "state/admin.json").read_text())
        self.authority = folder / "authority.pem"
        self.authority.write_text(credential["authority"])
        self.token = credential["token"]
        self.stopped = threading.Event()
        self.wait_until_ready()

    def wait_until_ready(self):
        for _ in range(200):
            if requests.get(self.url + "/readyz", verify=str(self.authority), timeout=5).status_code == 200:
                return
            time.sleep(0.05)
        raise AssertionError("the manager does not become ready")

    def ask(self, method, path, **options):
        headers = {"Authorization": f"Bearer {self.token}"}
        return requests.request(
            method, self.url + path, headers=headers, verify=str(self.authority), timeout=30, **options
        )

    def make_token(self, kind, identity):
        order = {"kind": kind, "identity": identity, "ttl_ms": 3_600_000}
        answer = self.ask("POST", "/v1/tokens", json=order)
        assert answer.status_code == 201, answer.text
        return answer.json()["token"]

    def join(self, name, kind="box"):
        """Joins a box or a host with openssl's keys; the files of its certificate and key."""
        token = self.make_token("join", f"spiffe://dxpu/{kind}/{name}")
        key, certificate = self.folder / f"{name}.key", self.folder / f"{name}.pem"
        request = subprocess.run(
            ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
            + ["-keyout", str(key), "-subj", "/CN=whatever"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        order = {"name": name, "token": token, "certificate_request": request}
        answer = requests.post(self.url + "/v1/join", json=order, verify=str(self.authority), timeout=30)
        assert answer.status_code == 200, answer.text
        certificate.write_text(answer.json()["certificate"])
        return str(certificate), str(key)

    def add_box(self, name, slots):
        """Joins a box, and lets it report until the pool stops."""
        agent = Agent(self, name, slots, self.join(name))
        agent.turn()
        threading.Thread(target=agent.run, daemon=True).start()

    def stop(self):
        self.stopped.set()
        self.process.terminate()
        assert self.process.wait(timeout=30) == 0
        self.log.close()


class Agent:
    """A box that does at once what it is told."""

    def __init__(self, pool, name, slots, certificate):
        self.pool, self.name, self.certificate, self.sequence = pool, name, certificate, 0
        counters = {
            "utilization_pct": 3,
            "memory_used_bytes": 1 << 30,
            "temperature_c": 40,
            "power_mw": 90_500,
            "ecc_uncorrected": 0,
            "sm_activity_pct": 2,
            "sm_occupancy_pct": 1,
            "dram_activity_pct": 0,
        }
        self.gpus = [
            {
                "slot": slot,
                "model": "H200",
                "memory_bytes": 141 << 30,
                "uuid": f'GPU-"{name}"\\{slot}',
                "health": {"ok": True},
                "bound_epoch": 0,
                "cleaned_epoch": 0,
                "ready": True,
                "endpoints": ["tls:127.0.0.1:7400"],
                "counters": counters,
            }
            for slot in range(slots)
        ]

    def turn(self):
        self.sequence += 1
        report = {"agent": "python", "sequence": self.sequence, "kind": "pcie", "gpus": self.gpus}
        answer = requests.post(
            f"{self.pool.url}/v1/boxes/{self.name}/report",
            json=report,
            cert=self.certificate,
            verify=str(self.pool.authority),
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        for order in answer.json()["slots"]:
            gpu = self.gpus[order["slot"]]
            gpu.pop("burn_in", None)
            if order["want"] == "clean":
                gpu["cleaned_epoch"] = order["epoch"]
            if order["want"] == "burn_in":
                gpu["burn_in"] = {"epoch": order["epoch"], "passed": True}

    def run(self):
        while not self.pool.stopped.wait(0.3):
            try:
                self.turn()
            except requests.RequestException:
                if self.pool.stopped.is_set():
                    return


@pytest.fixture
def empty_pool(tmp_path):
    """A manager without boxes."""
    pool = Pool(tmp_path)
    try:
        yield pool
        pool.stop()
    finally:
        pool.process.kill()


@pytest.fixture
def pool(empty_pool):
    """A manager with one box."""
    empty_pool.add_box("rack1-a", 2)
    return empty_pool
