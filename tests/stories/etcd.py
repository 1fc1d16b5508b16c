"""Members of etcd on this machine, real processes: three, unless told otherwise."""
import base64
import json
import os
import signal
import subprocess
import tempfile
import urllib.request

import kit

MEMBERS = 3


class Cluster:
    def __init__(self, members=MEMBERS):
        self.directory = tempfile.mkdtemp(dir=kit.scratch, prefix="etcd-")
        self.clients = [f"http://127.0.0.1:{kit.free_port()}" for _ in range(members)]
        self.peers = [f"http://127.0.0.1:{kit.free_port()}" for _ in range(members)]
        self.members = [None] * members

    def __enter__(self):
        for number in range(len(self.members)):
            self.start(number)
        kit.until(lambda: f"the members of etcd have a leader:\n{self.logs()}", lambda: self.leader() is not None, 60)
        return self

    def __exit__(self, *_):
        for member in self.members:
            if member and member.poll() is None:
                member.send_signal(signal.SIGCONT)
                member.kill()
            if member:
                member.wait()

    def location(self):
        """As `dxpu manager --store` wants it."""
        return "etcd:" + ",".join(self.clients)

    def start(self, number):
        everybody = ",".join(f"e{other}={peer}" for other, peer in enumerate(self.peers))
        command = [
            "etcd", "--name", f"e{number}", "--data-dir", os.path.join(self.directory, f"e{number}"),
            "--listen-client-urls", self.clients[number], "--advertise-client-urls", self.clients[number],
            "--listen-peer-urls", self.peers[number], "--initial-advertise-peer-urls", self.peers[number],
            "--initial-cluster", everybody, "--initial-cluster-state", "new",
        ]
        with open(os.path.join(self.directory, f"e{number}.log"), "ab") as log:
            self.members[number] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, number):
        self.members[number].kill()
        self.members[number].wait()

    def leader(self):
        """Which member leads the others, as it says itself."""
        for number, address in enumerate(self.clients):
            if self.members[number].poll() is None:
                try:
                    with urllib.request.urlopen(address + "/metrics", timeout=2) as answer:
                        if b"\netcd_server_is_leader 1\n" in answer.read():
                            return number
                except OSError:
                    pass
        return None

    def is_whole(self):
        """Whether every member says that it is well."""
        for address in self.clients:
            try:
                with urllib.request.urlopen(address + "/health", timeout=2) as answer:
                    if json.loads(answer.read()).get("health") != "true":
                        return False
            except OSError:
                return False
        return True

    def history(self, prefix="dxpu/"):
        """Every change since the beginning: (revision, key without the prefix, value or None)."""
        # A last change, to know when everything was seen.
        body = {"key": base64.b64encode(b"the-end").decode(), "value": ""}
        request = urllib.request.Request(self.clients[0] + "/v3/kv/put", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            last = int(json.loads(answer.read())["header"]["revision"])
        everything = {"key": "AA==", "range_end": "AA==", "start_revision": "1"}
        request = urllib.request.Request(self.clients[0] + "/v3/watch", json.dumps({"create_request": everything}).encode())
        found, seen = [], 0
        with urllib.request.urlopen(request, timeout=20) as stream:
            while seen < last:
                # One line an answer.
                answer = json.loads(stream.readline())["result"]
                kit.hold(not answer.get("canceled"), "etcd has forgotten the beginning:", answer)
                for change in answer.get("events", ()):
                    record = change["kv"]
                    seen = int(record["mod_revision"])
                    key = base64.b64decode(record["key"]).decode()
                    value = None if change.get("type") == "DELETE" else base64.b64decode(record.get("value", ""))
                    if key.startswith(prefix):
                        found.append((seen, key.removeprefix(prefix), value))
        return found

    def logs(self):
        told = []
        for number in range(len(self.members)):
            with open(os.path.join(self.directory, f"e{number}.log"), errors="replace") as log:
                told.append(f"e{number}: {log.read()[-1000:]}")
        return "\n".join(told)
