"""The operator's tools: `dxpu up`, the nouns, `dxpu top`; every answer as a table and as JSON, every refusal with a hint."""
import json
import os
import pty
import re
import signal
import subprocess
import tempfile
import time

import kit
import pool_kit

BOXES = [
    {"name": "rack1-a", "kind": "nvlink", "rack": "r1", "gpus": [{"model": "H200", "memory": "141GiB", "count": 4, "nvlink_group": 0}]},
    {"name": "rack1-b", "kind": "pcie", "rack": "r1", "gpus": [{"model": "L40S", "memory": "48GiB", "count": 2}]},
]


def tell(record):
    record.part("spares are planned without a pool", plan)
    record.part("without a pool, everything says what to do", nowhere)
    with pool_kit.Manager() as pool:
        pool.simulate(BOXES)
        pool.wait_for_gpus(6)
        record.part("gpu: ls, show, taint, drain, break, repair", gpus, pool)
        record.part("box: ls, show, drain", boxes, pool)
        record.part("lease: create, ls, show, explain, release; host, tenant", leases, pool)
        record.part("what cannot be is refused at once, in words that are true", true_words, pool)
        record.part("cordon, status, whoami, usage, yaml, prefixes, doctor", days, pool)
        record.part("a reader that goes away early is no panic", closed_pipe, pool)
        record.part("spare: set, ls, show", spares, pool)
        record.part("event: ls, show, and as it happens", events, pool)
        record.part("token: a tenant sees its own, a revoked one nothing", tokens, pool)
        record.part("--watch shows each change", watch, pool)
        record.part("the configuration file names the pool", configuration, pool)
        record.part("top, once", top_once, pool)
        record.part("top, live, with keys", top_live, pool)
    record.part("up: a pool on this machine, stopped and found again", up)
    record.part("up: killed, nothing stays behind", up_killed)


def plan():
    result = subprocess.run([kit.dxpu, "spare", "plan", "--gpus", "512", "--rate", "11.1", "-o", "json"], env=kit.clean_environment(), capture_output=True, text=True)
    kit.hold(result.returncode == 0 and json.loads(result.stdout)["spares"] == 5, result)


def nowhere():
    with tempfile.TemporaryDirectory(dir=kit.scratch) as directory:
        environment = kit.clean_environment() | {"HOME": directory}
        for words in (["gpu", "ls"], ["top", "--once"], ["lease", "create"], ["box", "ls"]):
            result = subprocess.run([kit.dxpu, *words], env=environment, capture_output=True, text=True)
            kit.hold(result.returncode == 2 and "what to do:" in result.stderr and "dxpu up" in result.stderr, words, result)


def gpus(pool):
    table = pool.must("gpu", "ls")
    lines = table.splitlines()
    kit.hold(len(lines) == 7 and lines[0].split()[:4] == ["GPU", "MODEL", "MEMORY", "STATE"], table)
    kit.hold(re.search(r"^rack1-a/0 +H200 +141 GiB +free ", table, re.M), table)
    kit.hold(len(pool.json("gpu", "ls", "--box", "rack1-b")) == 2, "two in that box")
    kit.hold("UUID" in pool.must("gpu", "ls", "-o", "wide"), "wide shows more")
    kit.hold("tainted: cold" in (pool.must("gpu", "taint", "rack1-b/0", "--reason", "cold") and pool.must("gpu", "ls")), "the reason")
    kit.hold("cold" in pool.must("gpu", "show", "rack1-b/0"), "show shows it too")
    kit.hold("taint" not in pool.json("gpu", "untaint", "rack1-b/0"), "untaint")
    kit.hold(pool.json("gpu", "drain", "rack1-b/0")["taint"]["drain"], "drain")
    pool.must("gpu", "untaint", "rack1-b/0")
    kit.hold(pool.json("gpu", "break", "rack1-b/1")["state"] == "bad", "break")
    kit.hold([gpu["id"] for gpu in pool.json("gpu", "ls", "--state", "bad")] == ["rack1-b/1"], "one is bad")
    kit.hold(pool.json("gpu", "repair", "rack1-b/1")["state"] == "burn_in", "repair")
    kit.until("it comes back", lambda: pool.json("gpu", "show", "rack1-b/1")["state"] == "free")
    refused(pool.run("gpu", "show", "rack9-z/0"), 65, "rack9-z/0")
    refused(pool.run("gpu", "repair", "rack1-a/0"), 65, "")
    kit.hold(pool.run("gpu", "show", "nonsense").returncode == 2, "nonsense is a wrong argument")


def refused(result, code, words):
    kit.hold(result.returncode == code and words in result.stderr and "what to do:" in result.stderr, result)


def boxes(pool):
    table = pool.must("box", "ls")
    kit.hold(re.search(r"^rack1-a +nvlink +r1 +ready +4 ", table, re.M), table)
    kit.hold(len(pool.json("box", "show", "rack1-a")["gpus"]) == 4, "its GPUs")
    kit.hold(pool.json("box", "drain", "rack1-b", "--reason", "cable")["state"] == "draining", "drain")
    kit.hold("cable" in pool.must("box", "ls"), "the reason")
    kit.hold(pool.json("box", "undrain", "rack1-b")["state"] == "ready", "undrain")


def leases(pool):
    granted = pool.json("lease", "create", "--gpus", "4", "--model", "H200", "--topology", "nvlink", "--tenant", "vision", "--ttl", "1h")
    kit.hold(granted["state"] == "granted" and len(granted["grants"]) == 4, granted)
    waiting = pool.json("lease", "create", "--gpus", "2", "--model", "H200", "--tenant", "speech", "--ttl", "1h", "--note", "next one")
    kit.hold(waiting["state"] == "pending", waiting)
    table = pool.must("lease", "ls")
    kit.hold("next one" in table and "rack1-a/0" in table and "2 wanted" in table, table)
    why = pool.must("lease", "explain", waiting["id"])
    kit.hold("WHY" in why and "4  leased by somebody" in why, why)
    kit.hold("asked for  4 GPUs of model H200, nvlink" in pool.must("lease", "show", granted["id"]), "show")
    kit.hold([one["gpus"] for one in pool.json("borrower", "ls")] == [4], "one borrower")
    kit.hold(len(pool.json("borrower", "show", "admin/first")["leases"]) == 2, "its leases")
    kit.hold("admin/first" in pool.must("borrower", "ls"), "borrower ls")
    pool.must("tenant", "set", "vision", "--weight", "200", "--guarantee", "H200=2", "--limit", "H200=4")
    pool.must("tenant", "set", "vision", "--guarantee", "L40S=1")
    tenant = pool.json("tenant", "show", "vision")
    kit.hold(tenant["weight"] == 200 and tenant["quotas"]["H200"] == {"guaranteed": 2, "limit": 4}, tenant)
    kit.hold("vision" in pool.must("tenant", "ls") and "H200 2 to 4" in pool.must("tenant", "ls"), "tenant ls")
    pool.must("lease", "release", granted["id"])
    kit.until("the next one is served", lambda: pool.json("lease", "show", waiting["id"])["state"] == "granted")
    kit.hold(pool.json("lease", "renew", waiting["id"])["state"] == "granted", "renew")
    pool.must("lease", "release", waiting["id"])
    kit.until("both are over", lambda: pool.json("lease", "ls") == [])
    kit.hold(len(pool.json("lease", "ls", "--all")) == 2, "they are still known")
    refused(pool.run("lease", "show", "l-0000000000000000"), 65, "l-0000000000000000")
    kit.hold(pool.run("lease", "create", "--gpus", "65").returncode == 2, "too many is a wrong argument")


def true_words(pool):
    refused(pool.run("lease", "create", "--model", "H20"), 65, "this pool has no model H20; it has H200 and L40S")
    refused(pool.run("lease", "create", "--memory", "999GiB"), 65, "the largest has 141 GiB")
    refused(pool.run("lease", "create", "--gpus", "5"), 65, "5 GPUs are asked for, and this pool has 4 at most")
    refused(pool.run("lease", "create", "--gpus", "2", "--model", "L40S", "--topology", "nvlink"), 65, "by NVLink")
    pool.must("tenant", "set", "small", "--limit", "L40S=1")
    refused(pool.run("lease", "create", "--gpus", "2", "--model", "L40S", "--tenant", "small"), 65, "tenant small may have 1 at most")
    made = pool.must("lease", "create", "--topology", "same_box")
    kit.hold("it ends 60m from now unless it is renewed" in made, made)
    lease = re.search(r"l-[0-9a-f]{16}", made).group()
    pool.must("lease", "release", lease)
    result = pool.run("run", "--worker", "tcp:127.0.0.1:1", "--gpus", "1", "--", "true")
    kit.hold(result.returncode == 2 and "leave one of the two out" in result.stderr, result)
    # Nothing listens at port 1. A command that waited for it would be killed by the time limit of the story.
    absent = pool.run("gpu", "ls", "--manager", "https://127.0.0.1:1")
    kit.hold(absent.returncode == 64 and "the connection is refused" in absent.stderr, absent)
    unknown = pool.run("gpu", "ls", "--manager", "https://no-such-host.invalid:7500")
    kit.hold(unknown.returncode == 64 and "name is not known" in unknown.stderr, unknown)
    trail = pool.must("audit", "ls").splitlines()
    kit.hold(trail[0].split() == ["NUMBER", "TIME", "OUTCOME", "ACTION", "WHO", "WHAT", "DETAIL"], trail[0])
    kit.hold(re.match(r" +\d+  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ", trail[1]), trail[1])


def days(pool):
    kit.hold(pool.json("whoami")["role"] == "admin", "whoami")
    held = pool.json("lease", "create", "--model", "L40S", "--ttl", "1h", "--tenant", "vision")
    prefix = held["id"][:8]
    kit.hold(pool.json("lease", "show", prefix)["id"] == held["id"], "by its first digits")
    kit.hold("L40S" in pool.must("status") and "1 granted" in pool.must("status"), pool.must("status"))
    kit.hold(f"id: {held['id']}" in pool.must("lease", "ls", "-o", "yaml"), "yaml")
    cordoned = pool.json("box", "cordon", "rack1-b", "--reason", "fan")
    kit.hold(not cordoned["drain"]["drain"] and "cordoned by admin/first: fan" in pool.must("box", "ls"), cordoned)
    kit.hold(pool.json("lease", "show", prefix)["grants"] == held["grants"], "a cordon moves nothing")
    waits = pool.json("lease", "create", "--model", "L40S", "--ttl", "1h")
    kit.hold(waits["state"] == "pending", waits)
    pool.must("lease", "release", waits["id"], prefix)
    drained = pool.must("box", "drain", "rack1-b", "--grace", "1h")
    kit.hold("box rack1-b is empty" in drained, drained)
    pool.must("box", "uncordon", "rack1-b")
    usage = pool.json("tenant", "usage")
    kit.hold(any(one["tenant"] == "vision" and one["leases_ended"] >= 1 for one in usage), usage)
    refused(pool.run("box", "rm", "rack1-b"), 65, "it reports to the manager")
    doctor = pool.must("doctor")
    kit.hold("a manager answers" in doctor and "WRONG" not in doctor, doctor)
    ada = pool.credential("tenant/vision/eve")
    seen = pool.must("status", credential=ada)
    kit.hold("YOU MAY HAVE NOW" in seen and "H200" in seen, seen)


def closed_pipe(pool):
    for words in (["gpu", "ls"], ["audit", "ls"], ["--help"], ["completions", "bash"], ["spare", "plan", "--gpus", "9"]):
        command = subprocess.Popen([kit.dxpu, *words], env=pool.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        command.stdout.close()
        said = command.stderr.read()
        command.stderr.close()
        kit.hold("panicked" not in said and command.wait() != 101, words, said)


def spares(pool):
    pool.must("spare", "set", "H200", "1")
    kit.until("one is held", lambda: len(pool.json("spare", "show", "H200")["held"]) == 1)
    kit.hold(re.search(r"^H200 +4 +0 +1 +1 +rack1-a/", pool.must("spare", "ls"), re.M), pool.must("spare", "ls"))
    pool.must("spare", "set", "H200", "0")


def events(pool):
    told = pool.json("event", "ls", "--last", "1000")
    kinds = {event["kind"] for event in told}
    kit.hold({"box_joined", "gpu_bad", "lease_granted", "lease_pending", "spares_changed"} <= kinds, kinds)
    kit.hold(pool.json("event", "show", str(told[0]["seq"])) == told[0], "show")
    about = pool.json("event", "ls", "--about", "rack1-b/1")
    kit.hold(about and all("rack1-b/1" in json.dumps(event) for event in about), about)
    follower = subprocess.Popen([kit.dxpu, "event", "ls", "--watch", "--last", "0", "-o", "json"], env=pool.environment, stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        pool.must("gpu", "taint", "rack1-a/1")
        kit.hold(json.loads(follower.stdout.readline())["kind"] == "gpu_tainted", "told as it happens")
    finally:
        follower.kill()
        follower.wait()
    pool.must("gpu", "untaint", "rack1-a/1")


def tokens(pool):
    ada = pool.credential("tenant/vision/ada")
    kit.hold(os.stat(ada).st_mode & 0o777 == 0o600, "for its owner alone")
    lease = pool.json("lease", "create", "--ttl", "1h", credential=ada)
    kit.hold(lease["tenant"] == "vision" and lease["owner"].endswith("/ada"), lease)
    kit.hold(len(pool.json("lease", "ls", credential=ada)) == 1, "her own")
    refused(pool.run("lease", "create", "--tenant", "speech", credential=ada), 65, "")
    refused(pool.run("gpu", "break", "rack1-a/0", credential=ada), 65, "")
    pool.must("lease", "release", lease["id"], credential=ada)
    known = next(token for token in pool.json("token", "ls") if token["identity"].endswith("/ada"))
    with open(ada) as file:
        kit.hold(json.load(file)["token"] not in pool.must("token", "ls", "-o", "json"), "secrets are not listed")
    pool.must("token", "revoke", known["id"])
    refused(pool.run("lease", "ls", credential=ada), 65, "")
    kit.hold(pool.run("token", "create", "viewer/wall", "--out", ada).returncode == 2, "a file is not overwritten")
    kit.hold("none changed, none missing" in pool.must("audit", "verify"), "the audit trail")


def watch(pool):
    follower = subprocess.Popen([kit.dxpu, "gpu", "ls", "--watch", "--box", "rack1-b", "-o", "json"], env=pool.environment, stdout=subprocess.PIPE, text=True)
    try:
        kit.hold("taint" not in json.loads(follower.stdout.readline())[0], "at first")
        pool.must("gpu", "taint", "rack1-b/0")
        start = time.monotonic()
        kit.hold("taint" in json.loads(follower.stdout.readline())[0], "then")
        kit.hold(time.monotonic() - start < 3, "at once")
    finally:
        follower.kill()
        follower.wait()
    pool.must("gpu", "untaint", "rack1-b/0")


def configuration(pool):
    directory = os.path.join(pool.environment["XDG_CONFIG_HOME"], "dxpu")
    os.makedirs(directory)
    bare = {name: value for name, value in pool.environment.items() if name != "DXPU_CREDENTIAL"}
    ask = lambda **more: subprocess.run([kit.dxpu, "gpu", "ls", "-o", "json"], env=bare | more, capture_output=True, text=True)
    with open(os.path.join(directory, "config.toml"), "w") as file:
        file.write(f"credential = '{pool.admin}'\n")
    kit.hold(len(json.loads(ask().stdout)) == 6, "by the file")
    answer = ask(DXPU_MANAGER="https://127.0.0.1:1")
    kit.hold(answer.returncode == 64 and "127.0.0.1:1" in answer.stderr, answer)
    kit.hold(ask(DXPU_MANAGER=f"https://127.0.0.1:1,{pool.address}").returncode == 0, "one of two managers answers")
    with open(os.path.join(directory, "config.toml"), "w") as file:
        file.write("credentials = 'x'\n")
    kit.hold(ask().returncode == 2, "a misspelt configuration is told")
    os.remove(os.path.join(directory, "config.toml"))


def top_once(pool):
    text = pool.must("top", "--once")
    kit.hold("boxes 2/2 ready" in text and "GPUs 6" in text and "rack1-a/3" in text, text)
    kit.hold(len(json.loads(pool.must("top", "--once", "-o", "json"))["gpus"]) == 6, "as JSON")


def top_live(pool):
    terminal, other = pty.openpty()
    before = subprocess.run(["stty", "-a"], stdin=other, capture_output=True, text=True).stdout
    subprocess.run(["stty", "rows", "24", "cols", "100"], stdin=other, check=True)
    process = subprocess.Popen([kit.dxpu, "top", "--interval", "200ms"], env=pool.environment | {"TERM": "xterm"}, stdin=other, stdout=other, stderr=other)
    seen = bytearray()
    os.set_blocking(terminal, False)

    def shows(word):
        try:
            seen.extend(os.read(terminal, 1 << 16))
        except BlockingIOError:
            pass
        return word in seen

    kit.until(lambda: bytes(seen[-400:]), lambda: shows(b"rack1-a/3"))
    # The terminal puts a carriage return of its own before each line feed.
    lines = bytes(seen).replace(b"\r", b"").split(b"\n")[:-1]
    plain = (re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", line).decode(errors="replace") for line in lines)
    widest = max(plain, key=len)
    kit.hold(len(widest) <= 100, "a line of", len(widest), "in a terminal of 100:", widest)
    pool.must("gpu", "taint", "rack1-a/3", "--reason", "hot")
    kit.until(lambda: bytes(seen[-400:]), lambda: shows(b"tainted: hot"))
    os.write(terminal, b"u")
    os.write(terminal, b"q")
    kit.until("q ends it", lambda: shows(b"\x1b[?1049l") and process.poll() is not None)
    kit.hold(process.returncode == 0, process.returncode)
    after = subprocess.run(["stty", "-a"], stdin=other, capture_output=True, text=True).stdout
    modes = lambda text: set(text.replace(";", "").split()) - {"24", "100", "0"}
    kit.hold(modes(after) == modes(before), "the terminal is as it was", after)
    os.close(terminal)
    os.close(other)
    pool.must("gpu", "untaint", "rack1-a/3")


class Up:
    def __init__(self, directory, port):
        self.state = os.path.join(directory, "up")
        self.environment = kit.clean_environment() | {
            "XDG_STATE_HOME": os.path.join(directory, "state"),
            "XDG_CONFIG_HOME": os.path.join(directory, "config"),
            "XDG_CACHE_HOME": os.path.join(kit.scratch, "cache"),
        }
        command = [kit.dxpu, "up", "--boxes", "2", "--gpus", "1", "--memory", "256MiB", "--listen", f"127.0.0.1:{port}", "--state-dir", self.state]
        self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        for line in self.process.stdout:
            said.append(line)
            if "Ctrl-C stops" in line:
                break
        self.said = "".join(said)
        kit.hold("The pool is up: 2 boxes, 2 GPUs" in self.said, self.said, self.logs())
        kit.hold(f"https://127.0.0.1:{port}/" in self.said, self.said)

    def logs(self):
        names = [name for name in os.listdir(self.state) if name.endswith(".log")] if os.path.isdir(self.state) else []
        return "\n".join(f"{name}: {open(os.path.join(self.state, name)).read()[-3000:]}" for name in names)

    def run(self, *arguments):
        environment = self.environment | {"DXPU_CREDENTIAL": os.path.join(self.state, "manager", "admin.json")}
        return subprocess.run([kit.dxpu, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    def parts(self):
        """Processes that this pool started, workers included, by the directory they all name."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read()
            except OSError:
                continue
            if self.state.encode() in words and int(pid) != self.process.pid:
                found.append(int(pid))
        return found


def up():
    with tempfile.TemporaryDirectory(dir=kit.scratch) as directory:
        port = kit.free_port()
        first = Up(directory, port)
        kit.hold(len(first.parts()) >= 3, "manager and boxes run", first.parts())
        second = subprocess.run([kit.dxpu, "up", "--state-dir", first.state], env=first.environment, capture_output=True, text=True)
        kit.hold(second.returncode == 1 and "is up already" in second.stderr, second)
        result = first.run("run", "--gpus", "1", "--", kit.program("exits"), "plain", "7")
        kit.hold(result.returncode == 7, result, first.logs())
        first.run("spare", "set", "soft", "1")
        first.process.send_signal(signal.SIGINT)
        kit.hold(first.process.wait(30) == 0, "Ctrl-C ends it well")
        kit.until(lambda: f"all parts end: {first.parts()}", lambda: first.parts() == [])
        again = Up(directory, port)
        spares = json.loads(again.run("spare", "ls", "-o", "json").stdout)
        kit.hold(spares[0]["wanted"] == 1, "it is the same pool", spares)
        again.process.send_signal(signal.SIGTERM)
        kit.hold(again.process.wait(30) == 0, "SIGTERM ends it well")
        kit.until(lambda: f"all parts end: {again.parts()}", lambda: again.parts() == [])


def up_killed():
    with tempfile.TemporaryDirectory(dir=kit.scratch) as directory:
        pool = Up(directory, kit.free_port())
        pool.process.kill()
        pool.process.wait()
        kit.until(lambda: f"all parts end: {pool.parts()}", lambda: pool.parts() == [], 30)
