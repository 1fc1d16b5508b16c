"""A clean Debian root file system, and commands inside it."""
import os
import pathlib
import re
import shutil
import subprocess

# What maintainer scripts may count on beside the essential packages.
PACKAGES = "libgcc-s1,passwd,systemd-standalone-sysusers,systemd-standalone-tmpfiles"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "dxpu"


def codename():
    """The distribution of this machine: its programs run there too."""
    with open("/etc/os-release") as file:
        settings = dict(line.strip().split("=", 1) for line in file if "=" in line)
    return settings.get("VERSION_CODENAME", "").strip('"')


def archive(name, packages):
    """The root as a tar file; made once on a machine."""
    path = CACHE / f"{name}-{codename()}.tar"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}.tar")
        command = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={packages}", "--dpkgopt=path-exclude=/usr/share/locale/*", codename(), str(unfinished)]
        try:
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


class Wire:
    """Two network namespaces with a wire between them. They end with the test's own namespace of mounts, which has their names."""

    def __init__(self, *ends):
        self.ends = [f"dxpu-{os.getpid()}-{name}" for name in ends]
        self.addresses = [f"10.77.0.{number}" for number, _ in enumerate(ends, start=1)]
        for network in self.ends:
            self.ip("netns", "add", network)
        first, second = self.ends
        self.ip("link", "add", "wire", "netns", first, "type", "veth", "peer", "name", "wire", "netns", second)
        for network, address in zip(self.ends, self.addresses):
            self.ip("-n", network, "address", "add", f"{address}/24", "dev", "wire")
            for device in ("lo", "wire"):
                self.ip("-n", network, "link", "set", device, "up")

    @staticmethod
    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    def remove(self):
        for network in self.ends:
            self.ip("netns", "delete", network)


class Root:
    def __init__(self, folder, network=None, kind="clean-root", packages=PACKAGES):
        """A machine's files, and the network namespace that its processes are in."""
        self.network = network
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        subprocess.run(["tar", "-xf", str(archive(kind, packages)), "-C", str(self.folder)], check=True)
        for name in ("proc", "dev"):
            (self.folder / name).mkdir(exist_ok=True)
            self.bind(f"/{name}", f"/{name}")

    def bind(self, outside, inside):
        """The mounts are in the test's own namespace, and end with it."""
        target = self.path(inside)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.mkdir() if os.path.isdir(outside) else target.touch()
        subprocess.run(["mount", "--rbind", str(outside), str(target)], check=True)

    def path(self, inside):
        return self.folder / str(inside).lstrip("/")

    def command(self, *words, user="root", environment=()):
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", **dict(environment)}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        return ["nsenter", f"--net=/run/netns/{self.network}", "chroot", f"--userspec={user}", str(self.folder), "env", "-i", *pairs, *map(str, words)]

    def run(self, *words, code=0, seconds=120, **options):
        command = self.command(*words, **options)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
        if code is not None and done.returncode != code:
            raise AssertionError(f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def put(self, outside, inside, mode=0o755):
        shutil.copyfile(outside, self.path(inside))
        self.path(inside).chmod(mode)

    def owner(self, inside, user):
        for line in self.path("/etc/passwd").read_text().splitlines():
            fields = line.split(":")
            if fields[0] == user:
                os.chown(self.path(inside), int(fields[2]), int(fields[3]))
                return
        raise AssertionError(f"there is no user {user}")

    def processes_of(self, users):
        """Processes inside this root; outside, the same numbers are other users."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if not os.readlink(f"/proc/{pid}/root").startswith(str(self.folder)):
                    continue
                # Processes of dxpu hide their owner behind root's; the real one stands in their status.
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            if int(re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)[1]) in users:
                found.append(int(pid))
        return found

    def files(self):
        """Everything that a package could leave behind."""
        apart = ("proc", "dev", "tmp", "run", "var/lib/dpkg", "var/log", "var/cache/ldconfig")
        found = set()
        for above, folders, files in os.walk(self.folder):
            inside = os.path.relpath(above, self.folder)
            folders[:] = [name for name in folders if os.path.normpath(os.path.join(inside, name)) not in apart]
            found.update(os.path.normpath(os.path.join(inside, name)) for name in [*files, *folders])
        return found
