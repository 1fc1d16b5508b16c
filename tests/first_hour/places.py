"""Where the page is typed: a home with nothing in it but `dxpu` in the path, and Python."""
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

import clean_root

PATIENCE_S = 180
PYTHON_ROOT = "python-root"
# What a Python that is built from source, and the wheels of CuPy and Numba, expect of a system.
PYTHON_LIBRARIES = "libstdc++6,libgcc-s1,libssl3,libffi8,libbz2-1.0,liblzma5,zlib1g,libsqlite3-0,libreadline8,libncursesw6,libuuid1"
DELIVERED = "first-hour-typed"


class EmptyHome:
    words = "an empty home (not a clean root: that needs root, unshare and mmdebstrap)"

    def __init__(self, folder, dxpu, venv):
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        self.open(dxpu, venv)
        self.terminals, self.shell = {}, None

    def open(self, dxpu, venv):
        programs = self.folder / "bin"
        programs.mkdir()
        shutil.copy(dxpu, programs / "dxpu")
        self.path = f"{programs}:{venv}/bin:/usr/local/bin:/usr/bin:/bin"

    def command(self, *words):
        return ["env", "-i", f"PATH={self.path}", f"HOME={self.home}", "LANG=C.UTF-8", *words]

    def start(self, words, **options):
        return subprocess.Popen(self.command(*words), stdin=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                                cwd=self.working_folder(), **options)

    def working_folder(self):
        return self.home

    def type(self, step, turn):
        if turn.command == "^C":
            return self.end(step.terminal)
        if step.terminal:
            return self.open_terminal(step, turn)
        return self.say(turn.command)

    def say(self, command):
        """In one shell for the whole page, as a reader has one."""
        if self.shell is None:
            self.shell = self.start(["bash", "--norc"], stdout=subprocess.PIPE)
        self.shell.stdin.write(f"{{ {command}\n}} </dev/null\necho {DELIVERED} $?\n".encode())
        self.shell.stdin.flush()
        said = b""
        began = time.monotonic()
        os.set_blocking(self.shell.stdout.fileno(), False)
        while DELIVERED.encode() not in said:
            said += self.shell.stdout.read() or b""
            if time.monotonic() - began > PATIENCE_S or self.shell.poll() is not None:
                return said.decode(errors="replace") + f"(no answer after {time.monotonic() - began:.0f} s)\n"
            time.sleep(0.02)
        text, _, code = said.decode(errors="replace").partition(DELIVERED)
        # A reader sees whether it failed by its words; a page that shows no words shows no failure.
        return text if code.strip() == "0" or text.strip() else f"(exit status {code.strip()})\n"

    def open_terminal(self, step, turn):
        log = self.folder / f"{step.terminal}.said"
        with open(log, "wb") as file:
            self.terminals[step.terminal] = (self.start(["bash", "--norc", "-c", f"exec {turn.command}"], stdout=file), log)
        process = self.terminals[step.terminal][0]
        began = time.monotonic()
        while step.until not in log.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() - began > PATIENCE_S:
                break
            time.sleep(0.05)
        return log.read_text(errors="replace")

    def end(self, name):
        process, log = self.terminals.pop(name)
        before = len(log.read_text(errors="replace"))
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        return log.read_text(errors="replace")[before:]

    def leave(self):
        for process, _ in self.terminals.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        for process, _ in self.terminals.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if self.shell:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait()


def prepare():
    """Fetches what a clean root is made of, once on a machine."""
    clean_root.archive(PYTHON_ROOT, PYTHON_LIBRARIES)


class CleanRoot(EmptyHome):
    words = "a clean Debian root"

    def open(self, dxpu, venv):
        self.root = clean_root.Root(self.folder / "root", kind=PYTHON_ROOT, packages=PYTHON_LIBRARIES)
        self.root.bind("/sys", "/sys")
        self.root.put(dxpu, "/usr/local/bin/dxpu")
        # Python, CuPy and Numba lie where the virtual environment expects them.
        interpreter = pathlib.Path(os.path.realpath(venv / "bin" / "python"))
        for tree in {venv, interpreter.parent.parent}:
            if tree != pathlib.Path("/usr"):
                self.root.bind(tree, tree)
        self.home = pathlib.Path("/home/newcomer")
        self.root.path(self.home).mkdir(parents=True)
        self.path = f"/usr/local/bin:/usr/bin:/bin:{venv}/bin"

    def command(self, *words):
        return ["chroot", str(self.root.folder), "env", "-i", f"PATH={self.path}", f"HOME={self.home}", "LANG=C.UTF-8", "bash", "-c", 'cd && exec "$@"', "bash", *words]

    def working_folder(self):
        return "/"

    def leave(self):
        super().leave()
        for line in reversed(pathlib.Path("/proc/self/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", place])
