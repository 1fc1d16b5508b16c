"""The life of two machines with the packages: install, configure, run, upgrade under a running program, remove, purge.

    desk    the manager, and a person who borrows ── wire ── rack    a box with GPUs in software
"""
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
PACKAGES = ["dxpu", "dxpu-client", "dxpu-libraries", "dxpu-slurm"]
# What installing and purging any package may leave: the lists of users, and dpkg's own notes.
APART = re.compile(r"etc/(passwd|group|shadow|gshadow|subuid|subgid)-?$|etc/\.pwd\.lock$|usr/local/bin/systemctl$|etc/ld\.so\.cache$")


HOLDS = {
    "dxpu-libraries": ["/dxpu/libcuda.so.1", "/dxpu/libnvidia-ml.so.1"],
    "dxpu-client": ["./usr/bin/dxpu", "./usr/share/man/man1/dxpu-run.1.gz"],
    "dxpu": ["/dxpu-box.service", "./etc/dxpu/manager.toml", "/monitoring/alerts.yml", "/kube/chart/Chart.yaml"],
    "dxpu-slurm": ["-rwxr-xr-x", "./usr/lib/dxpu-slurm/prolog", "./usr/share/dxpu/slurm/burst_buffer.lua"],
}


def build(built, folder):
    debs = folder / "debs"
    for version in (OLD, NEW):
        command = [ROOT / "deploy/package", "--built", built, "--out", debs, "--version", version, "--no-debug", "--quick"]
        done = subprocess.run(command, capture_output=True, text=True)
        kit.hold(done.returncode == 0, done.stdout + done.stderr)
    for package, names in HOLDS.items():
        deb = next(debs.glob(f"{package}_{OLD}_*.deb"))
        listed = subprocess.run(["dpkg-deb", "--contents", deb], capture_output=True, text=True, check=True).stdout
        for name in names:
            kit.hold(name in listed, package, "lacks", name, listed)
    if shutil.which("lintian"):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *debs.glob(f"*_{OLD}_*.deb")], capture_output=True, text=True)
        kit.hold(done.returncode == 0, done.stdout + done.stderr)
        return "lintian finds no error"
    return "there is no lintian here"


class Machine:
    def __init__(self, folder, name, network, address):
        self.folder, self.name, self.address = folder, name, address
        self.root = clean_root.Root(folder / name, network)
        self.before = self.root.files()
        self.systemd = service_manager.ServiceManager(self.root)

    def dpkg(self, *words):
        return self.root.run("dpkg", *words, environment={"DEBIAN_FRONTEND": "noninteractive"})

    def install(self, version):
        debs = self.root.path("/tmp/debs")
        shutil.rmtree(debs, ignore_errors=True)
        debs.mkdir()
        names = [deb.name for deb in (self.folder / "debs").glob(f"*_{version}_*.deb")]
        kit.hold(len(names) == len(PACKAGES), names)
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
        return "\n".join(f"{self.name} {path.name}: {path.read_text(errors='replace')[-3000:]}" for path in found)

    def ready(self, unit):
        service = self.systemd.service(unit)
        kit.until(self.logs, lambda: "READY=1" in service.said or not service.is_active(), 60)
        kit.hold(service.is_active(), self.logs())

    def user_command(self, *words):
        """As a person without privileges, in a folder of its own."""
        environment = {"HOME": "/tmp/user", "DXPU_CREDENTIAL": "/tmp/user/ada.json"}
        return self.root.command(*words, user="nobody:nogroup", environment=environment)


class Desk(Machine):
    """Where the manager runs, and a person works."""

    def __init__(self, folder, network, address):
        super().__init__(folder, "desk", network, address)
        for program in ("steady", "exits"):
            source = ROOT / f"tests/stories/programs/{program}.c"
            subprocess.run(["cc", "-O1", "-o", folder / program, source, "-ldl", "-lpthread"], check=True)
            self.root.put(folder / program, f"/tmp/{program}")
        self.root.path("/tmp/user").mkdir()
        self.root.path("/tmp/user").chmod(0o777)


class Pool:
    def __init__(self, folder):
        self.folder = folder
        self.wire = clean_root.Wire("desk", "rack")
        (desk, rack), (here, there) = self.wire.ends, self.wire.addresses
        self.desk, self.rack = Desk(folder, desk, here), Machine(folder, "rack", rack, there)
        self.machines = [self.desk, self.rack]

    def logs(self):
        return "\n".join(machine.logs() for machine in self.machines)

    def stop(self):
        for machine in self.machines:
            machine.systemd.stop()
        self.wire.remove()


def tell(record, folder):
    pool = Pool(folder)
    try:
        record.part("install on two machines: users, folders, configuration; nothing runs", install, pool)
        record.part("configuration files alone start a manager on one and a box on the other", start, pool)
        record.part("a person's program runs through the installed client", run, pool)
        record.part("a container gets libraries and credential by CDI", container, pool)
        record.part("an upgrade of both under a running program loses no lease", upgrade, pool)
        record.part("remove: everything ends, settings and state stay", remove, pool)
        record.part("purge: nothing is left", purge, pool)
    finally:
        pool.stop()


def install(pool):
    for machine in pool.machines:
        said = machine.install(OLD)
        kit.hold(machine.systemd.orders == [["daemon-reload"]], machine.systemd.orders, said)
        users = machine.root.path("/etc/passwd").read_text()
        for role in ("manager", "box", "host", "worker"):
            kit.hold(re.search(rf"^dxpu-{role}:", users, re.MULTILINE), users)
            state = machine.root.path(f"/var/lib/dxpu/{role}").stat()
            kit.hold(state.st_mode & 0o777 == 0o700 and state.st_uid != 0, role, oct(state.st_mode))
        for role in ("manager", "box", "host", "worker", "functions"):
            done = machine.root.run("dxpu", role, "--config", f"/etc/dxpu/{role}.toml", "--print-config")
            kit.hold(done == machine.root.path(f"/etc/dxpu/{role}.toml").read_text(), role, done)
        kit.hold(OLD in machine.dpkg("--list", *PACKAGES), "installed")


def start(pool):
    desk, rack = pool.desk, pool.rack
    manager = f"https://{desk.address}:7500"
    desk.configure("manager", listen=f"{desk.address}:7500", advertise=manager, name="m1")
    desk.root.run("systemctl", "enable", "--now", MANAGER)
    desk.ready(MANAGER)
    desk.must("token", "create", "box/rack1-a", "--out", "/tmp/join.json")
    join = "/var/lib/dxpu/box/join.json"
    shutil.move(desk.root.path("/tmp/join.json"), rack.root.path(join))
    rack.root.owner(join, "dxpu-box")
    rack.configure("box", soft=2, memory="64MiB", listen=rack.address, advertise=rack.address, rack="r1")
    rack.root.run("systemctl", "enable", "--now", BOX)
    rack.ready(BOX)
    kit.until(pool.logs, lambda: [gpu["state"] for gpu in desk.json("gpu", "ls")] == ["free", "free"], 60)
    kit.until(pool.logs, lambda: "WATCHDOG=1" in rack.systemd.service(BOX).said)
    # The token has done its work; the configuration goes on naming it.
    rack.root.path(join).unlink()
    # What the environment says counts more than the file, and the command line more than both.
    shown = lambda *words, **variables: rack.root.run("dxpu", "box", "--config", "/etc/dxpu/box.toml", *words, "--print-config", environment=variables)
    rack.configure("box", manager=["https://127.0.0.1:1"])
    kit.hold('\nmanager = ["https://127.0.0.1:1"]' in shown(), "of the file")
    kit.hold('\nmanager = ["https://a:1", "https://b:1"]' in shown(DXPU_MANAGER="https://a:1,https://b:1"), shown(DXPU_MANAGER="https://a:1,https://b:1"))
    kit.hold('\nmanager = ["https://c:1"]' in shown("--manager", "https://c:1", DXPU_MANAGER="https://a:1"), "of the command line")
    kit.hold("s3cret" not in shown(DXPU_JOIN_TOKEN="s3cret-token"), "secrets are not shown")
    rack.configure("box", manager=[manager])


def run(pool):
    desk = pool.desk
    desk.must("token", "create", "tenant/vision/ada", "--out", "/tmp/user/ada.json")
    desk.root.owner("/tmp/user/ada.json", "nobody")
    command = desk.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "7")
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    kit.hold(done.returncode == 7, done, pool.logs())
    kit.until("given back", lambda: desk.json("lease", "ls") == [])


def container(pool):
    """A container runtime does this with the specification."""
    desk = pool.desk
    desk.must("cdi", "generate", "--credential", "/tmp/user/ada.json", "--out", "/etc/cdi/dxpu.json")
    document = json.loads(desk.root.path("/etc/cdi/dxpu.json").read_text())
    shutil.rmtree(desk.root.path("/etc/cdi"))
    inside = clean_root.Root(pool.folder / "container", desk.root.network)
    edits = document["devices"][0]["containerEdits"]
    for mount in edits["mounts"]:
        kit.hold("ro" in mount["options"], mount)
        inside.bind(desk.root.path(mount["hostPath"]), mount["containerPath"])
    inside.put(pool.folder / "exits", "/tmp/exits")
    environment = dict(pair.split("=", 1) for pair in edits["env"]) | {"HOME": "/tmp"}
    command = inside.command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "9", user="nobody:nogroup", environment=environment)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
    kit.hold(done.returncode == 9, done, pool.logs())


def executable(pid):
    return os.readlink(f"/proc/{pid}/exe")


def upgrade(pool):
    desk, rack = pool.desk, pool.rack
    box, agent = rack.systemd.service(BOX), rack.systemd.service(BOX).process.pid
    command = desk.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/steady")
    with open(pool.folder / "steady.out", "w+") as out:
        program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        said = lambda: (pool.folder / "steady.out").read_text()
        try:
            kit.until(lambda: said() + pool.logs(), lambda: "working" in said() or program.poll() is not None, 60)
            # The lease of the program before may be on its way back.
            kit.until(lambda: f"one lease is held: {desk.held()}", lambda: len(desk.held()) == 1, 20)
            held = desk.held()
            workers = [pid for pid in box.members() if pid != agent]
            for machine in pool.machines:
                install_the_new(machine)
            desk.ready(MANAGER)
            rack.ready(BOX)
            kit.hold(box.process.pid != agent, "another agent")
            kit.hold(not executable(box.process.pid).endswith("(deleted)"), "of the new version")
            kit.until(lambda: f"{held} became {desk.held()}\n{pool.logs()}", lambda: desk.held() == held, 30)
            # The program's worker and session serve on, from a file that is not there any more.
            left = [pid for pid in workers if os.path.exists(f"/proc/{pid}") and executable(pid).endswith("(deleted)")]
            kit.hold(left, "no worker of the old version is left", workers, pool.logs())
            kit.hold(program.poll() is None, said())
            # A worker of the old version starts its sessions from its own file.
            second = desk.user_command("dxpu", "run", "--gpus", "1", "--", "/tmp/exits", "plain", "8")
            for _ in range(2):
                done = subprocess.run(second, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90)
                kit.hold(done.returncode == 8, done, pool.logs())
        finally:
            program.send_signal(signal.SIGTERM)
            code = program.wait(60)
        kit.hold(code == 0 and "rounds" in said(), code, said(), pool.logs())
    kit.until("given back", lambda: desk.json("lease", "ls") == [])
    return said().splitlines()[-1]


def install_the_new(machine):
    machine.systemd.orders.clear()
    settings = machine.root.path("/etc/dxpu/box.toml")
    before = settings.read_text()
    text = machine.install(NEW)
    kit.hold(["try-restart", MANAGER, BOX] in machine.systemd.orders, machine.systemd.orders, text)
    kit.hold(settings.read_text() == before, "the operator's settings stay")
    kit.hold(NEW in machine.dpkg("--list", "dxpu"), "upgraded")


def remove(pool):
    kept = {"desk": ["/var/lib/dxpu/manager/pool.db"], "rack": ["/var/lib/dxpu/box/membership.json"]}
    for machine in reversed(pool.machines):
        said = machine.dpkg("--remove", "dxpu")
        kit.hold(not any(service.is_active() for service in machine.systemd.services.values()), said)
        users = machine.root.path("/etc/passwd").read_text()
        numbers = {int(line.split(":")[2]) for line in users.splitlines() if line.startswith("dxpu-")}
        kit.hold(len(numbers) == 4, users)
        left = lambda: machine.root.processes_of(numbers)
        kit.until(lambda: f"processes are left: {left()}", lambda: not left())
        for path in ["/etc/dxpu/box.toml", *kept[machine.name]]:
            kit.hold(machine.root.path(path).exists(), f"{path} is gone")
        kit.hold(not machine.root.path(f"/lib/systemd/system/{BOX}").exists(), "the unit is gone")
        kit.hold(list(machine.root.path("/run/systemd/system").iterdir()) == [], "so is what prerm put beside it")


def purge(pool):
    for machine in pool.machines:
        machine.dpkg("--purge", *PACKAGES)
        left = sorted(path for path in machine.root.files() - machine.before if not APART.search(path))
        kit.hold(not left, "left behind:", *left)
        gone = sorted(path for path in machine.before - machine.root.files() if not APART.search(path))
        kit.hold(not gone, "taken away:", *gone)
        for name in ("passwd", "group", "shadow"):
            kit.hold("dxpu" not in machine.root.path(f"/etc/{name}").read_text(), f"/etc/{name} names dxpu")
