"""A machine's life with the packages: install, configure, run, upgrade under a running program, remove, purge."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess

import clean_root
import kit
import service_manager

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLD, NEW = "0.1.0", "0.1.1"
ADMIN = {"DXPU_CREDENTIAL": "/var/lib/dxpu/manager/admin.json"}
MANAGER, BOX = "dxpu-manager.service", "dxpu-box.service"
# What installing and purging any package may leave: the lists of users, and dpkg's own notes.
APART = re.compile(r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|etc/\.pwd\.lock$|usr/local/bin/systemctl$|etc/ld\.so\.cache$")


def build(built, folder):
    debs = folder / "debs"
    for version in (OLD, NEW):
        command = [ROOT / "deploy/package", "--built", built, "--out", debs, "--version", version, "--no-debug", "--quick"]
        done = subprocess.run(command, capture_output=True, text=True)
        kit.hold(done.returncode == 0, done.stdout + done.stderr)
    client = next(debs.glob(f"dxpu-client_{OLD}_*.deb"))
    listed = subprocess.run(["dpkg-deb", "--contents", client], capture_output=True, text=True, check=True).stdout
    for name in ("./usr/bin/dxpu", "/dxpu/libcuda.so.1", "/dxpu/libnvidia-ml.so.1", "./usr/share/man/man1/dxpu-run.1.gz"):
        kit.hold(name in listed, name, listed)
    if shutil.which("lintian"):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *debs.glob(f"*_{OLD}_*.deb")], capture_output=True, text=True)
        kit.hold(done.returncode == 0, done.stdout + done.stderr)
        return "lintian finds no error"
    return "there is no lintian here"


class Machine:
    def __init__(self, folder):
        self.folder = folder
        self.root = clean_root.Root(folder / "machine")
        self.before = self.root.files()
        self.systemd = service_manager.ServiceManager(self.root)
        self.port = kit.free_port()
        for program in ("steady", "exits"):
            source = ROOT / f"tests/stories/programs/{program}.c"
            subprocess.run(["cc", "-O1", "-o", folder / program, source, "-ldl", "-lpthread"], check=True)
            self.root.put(folder / program, f"/tmp/{program}")
        self.root.path("/tmp/user").mkdir()
        self.root.path("/tmp/user").chmod(0o777)

    def dpkg(self, *words):
        return self.root.run("dpkg", *words, environment={"DEBIAN_FRONTEND": "noninteractive"})

    def install(self, version):
        debs = self.root.path("/tmp/debs")
        shutil.rmtree(debs, ignore_errors=True)
        debs.mkdir()
        names = [deb.name for deb in (self.folder / "debs").glob(f"*_{version}_*.deb")]
        kit.hold(len(names) == 2, names)
        for name in names:
            shutil.copy(self.folder / "debs" / name, debs)
        return self.dpkg("--install", *(f"/tmp/debs/{name}" for name in names))

    def must(self, *words, environment=ADMIN):
        return self.root.run("dxpu", *words, environment=environment)

    def json(self, *words):
        return json.loads(self.must(*words, "-o", "json"))

    def held(self):
        """Leases, with their GPUs and epochs: what may not change."""
        return [(lease["id"], [(grant["gpu"], grant.get("epoch")) for grant in lease["grants"]]) for lease in self.json("lease", "ls")]

    def configure(self, role, **settings):
        """As an operator: the line of a setting, with another value and without its #."""
        path = self.root.path(f"/etc/dxpu/{role}.toml")
        text = path.read_text()
        for name, value in settings.items():
            key = name.replace("_", "-")
            text, count = re.subn(rf"^(?:# )?{key} = .*$", f"{key} = {json.dumps(value)}", text, flags=re.MULTILINE)
            kit.hold(count == 1, f"{key} stands {count} times in {path}")
        path.write_text(text)

    def logs(self):
        found = [service.log() for service in self.systemd.services.values() if service.log().exists()]
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-3000:]}" for path in found)

    def ready(self, unit):
        service = self.systemd.service(unit)
        kit.until(self.logs, lambda: "READY=1" in service.said or not service.is_active(), 60)
        kit.hold(service.is_active(), self.logs())

    def user_command(self, *words):
        """As a person without privileges, in a folder of its own."""
        environment = {"HOME": "/tmp/user", "DXPU_CREDENTIAL": "/tmp/user/ada.json"}
        return self.root.command(*words, user="nobody:nogroup", environment=environment)


def tell(record, folder):
    machine = Machine(folder)
    try:
        record.part("install: users, folders, configuration; nothing runs", install, machine)
        record.part("configuration files alone start a manager and a box", start, machine)
        record.part("a person's program runs through the installed client", run, machine)
        record.part("a container gets libraries and credential by CDI", container, machine)
        record.part("an upgrade under a running program loses no lease", upgrade, machine)
        record.part("remove: everything ends, settings and state stay", remove, machine)
        record.part("purge: nothing is left", purge, machine)
    finally:
        machine.systemd.stop()


def install(machine):
    said = machine.install(OLD)
    kit.hold(machine.systemd.orders == [["daemon-reload"]], machine.systemd.orders, said)
    users = machine.root.path("/etc/passwd").read_text()
    for role in ("manager", "box", "host", "worker"):
        kit.hold(re.search(rf"^dxpu-{role}:", users, re.MULTILINE), users)
        state = machine.root.path(f"/var/lib/dxpu/{role}").stat()
        kit.hold(state.st_mode & 0o777 == 0o700 and state.st_uid != 0, role, oct(state.st_mode))
        done = machine.root.run("dxpu", role, "--config", f"/etc/dxpu/{role}.toml", "--print-config")
        kit.hold(done == machine.root.path(f"/etc/dxpu/{role}.toml").read_text(), role, done)
    kit.hold(OLD in machine.dpkg("--list", "dxpu", "dxpu-client"), "installed")


def start(machine):
    root = machine.root
    machine.configure("manager", listen=f"127.0.0.1:{machine.port}", advertise=f"https://127.0.0.1:{machine.port}", name="m1")
    root.run("systemctl", "enable", "--now", MANAGER)
    machine.ready(MANAGER)
    machine.must("token", "create", "box/rack1-a", "--out", "/var/lib/dxpu/box/join.json")
    root.owner("/var/lib/dxpu/box/join.json", "dxpu-box")
    machine.configure("box", soft=2, memory="64MiB", listen="127.0.0.1", advertise="127.0.0.1", rack="r1")
    root.run("systemctl", "enable", "--now", BOX)
    machine.ready(BOX)
    kit.until(machine.logs, lambda: [gpu["state"] for gpu in machine.json("gpu", "ls")] == ["free", "free"], 60)
    kit.until(machine.logs, lambda: "WATCHDOG=1" in machine.systemd.service(BOX).said)
    # The token has done its work; the configuration goes on naming it.
    root.path("/var/lib/dxpu/box/join.json").unlink()
    # What the environment says counts more than the file, and the command line more than both.
    shown = lambda *words, **variables: root.run("dxpu", "box", "--config", "/etc/dxpu/box.toml", *words, "--print-config", environment=variables)
    machine.configure("box", manager=["https://127.0.0.1:1"])
    kit.hold('\nmanager = ["https://127.0.0.1:1"]' in shown(), "of the file")
    kit.hold('\nmanager = ["https://a:1", "https://b:1"]' in shown(DXPU_MANAGER="https://a:1,https://b:1"), shown(DXPU_MANAGER="https://a:1,https://b:1"))
    kit.hold('\nmanager = ["https://c:1"]' in shown("--manager", "https://c:1", DXPU_MANAGER="https://a:1"), "of the command line")
    kit.hold("s3cret" not in shown(DXPU_JOIN_TOKEN="s3cret-token"), "secrets are not shown")
    machine.configure("box", manager=[f"https://127.0.0.1:{machine.port}"])


def run(machine):
    machine.must("token", "create", "tenant/vision/ada", "--out", "/tmp/user/ada.json")
    machine.root.owner("/tmp/user/ada.json", "nobody")
    command = machine.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "7")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    kit.hold(done.returncode == 7, done, machine.logs())
    kit.until("given back", lambda: machine.json("lease", "ls") == [])


def container(machine):
    """A container runtime does this with the specification."""
    machine.must("cdi", "generate", "--credential", "/tmp/user/ada.json", "--out", "/etc/cdi/dxpu.json")
    document = json.loads(machine.root.path("/etc/cdi/dxpu.json").read_text())
    shutil.rmtree(machine.root.path("/etc/cdi"))
    inside = clean_root.Root(machine.folder / "container")
    edits = document["devices"][0]["containerEdits"]
    for mount in edits["mounts"]:
        kit.hold("ro" in mount["options"], mount)
        inside.bind(machine.root.path(mount["hostPath"]), mount["containerPath"])
    inside.put(machine.folder / "exits", "/tmp/exits")
    environment = dict(pair.split("=", 1) for pair in edits["env"]) | {"HOME": "/tmp"}
    command = inside.command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "9", user="nobody:nogroup", environment=environment)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    kit.hold(done.returncode == 9, done, machine.logs())


def executable(pid):
    return os.readlink(f"/proc/{pid}/exe")


def upgrade(machine):
    box = machine.systemd.service(BOX)
    agent = box.process.pid
    command = machine.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/steady")
    with open(machine.folder / "steady.out", "w+") as out:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        said = lambda: (machine.folder / "steady.out").read_text()
        try:
            kit.until(lambda: said() + machine.logs(), lambda: "working" in said() or program.poll() is not None, 60)
            held = machine.held()
            kit.hold(len(held) == 1, held)
            workers = [pid for pid in box.members() if pid != agent]
            machine.systemd.orders.clear()
            before = machine.root.path("/etc/dxpu/box.toml").read_text()
            text = machine.install(NEW)
            kit.hold(["try-restart", MANAGER, BOX] in machine.systemd.orders, machine.systemd.orders, text)
            kit.hold(machine.root.path("/etc/dxpu/box.toml").read_text() == before, "the operator's settings stay")
            machine.ready(MANAGER)
            machine.ready(BOX)
            kit.hold(box.process.pid != agent, "another agent")
            kit.hold(not executable(box.process.pid).endswith("(deleted)"), "of the new version")
            kit.until(lambda: f"{held} became {machine.held()}\n{machine.logs()}", lambda: machine.held() == held, 30)
            # The program's worker and session serve on, from a file that is not there any more.
            left = [pid for pid in workers if os.path.exists(f"/proc/{pid}") and executable(pid).endswith("(deleted)")]
            kit.hold(left, "no worker of the old version is left", workers, machine.logs())
            kit.hold(program.poll() is None, said())
            # A worker of the old version starts its sessions from its own file.
            second = machine.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "8")
            done = subprocess.run(second, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
            kit.hold(done.returncode == 8, done, machine.logs())
            again = subprocess.run(second, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
            kit.hold(again.returncode == 8, again, machine.logs())
        finally:
            program.send_signal(signal.SIGTERM)
            code = program.wait(60)
        kit.hold(code == 0 and "rounds" in said(), code, said(), machine.logs())
    kit.hold(NEW in machine.dpkg("--list", "dxpu"), "upgraded")
    kit.until("given back", lambda: machine.json("lease", "ls") == [])
    return said().splitlines()[-1]


def remove(machine):
    box, manager = machine.systemd.service(BOX), machine.systemd.service(MANAGER)
    said = machine.dpkg("--remove", "dxpu")
    kit.hold(not box.is_active() and not manager.is_active(), said)
    users = machine.root.path("/etc/passwd").read_text()
    numbers = {int(line.split(":")[2]) for line in users.splitlines() if line.startswith("dxpu-")}
    kit.hold(len(numbers) == 4, users)
    left = lambda: machine.root.processes_of(numbers)
    kit.until(lambda: f"processes are left: {left()}", lambda: not left())
    for kept in ("/etc/dxpu/box.toml", "/var/lib/dxpu/manager/pool.db", "/var/lib/dxpu/box/membership.json"):
        kit.hold(machine.root.path(kept).exists(), f"{kept} is gone")
    kit.hold(not machine.root.path(f"/lib/systemd/system/{BOX}").exists(), "the unit is gone")
    kit.hold(list(machine.root.path("/run/systemd/system").iterdir()) == [], "so is what prerm put beside it")


def purge(machine):
    machine.dpkg("--purge", "dxpu", "dxpu-client")
    left = sorted(path for path in machine.root.files() - machine.before if not APART.search(path))
    kit.hold(not left, "left behind:", *left)
    gone = sorted(path for path in machine.before - machine.root.files() if not APART.search(path))
    kit.hold(not gone, "taken away:", *gone)
    for name in ("passwd", "group", "shadow"):
        kit.hold("dxpu" not in machine.root.path(f"/etc/{name}").read_text(), f"/etc/{name} names dxpu")
