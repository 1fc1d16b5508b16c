"""An MPS daemon of our own: NVIDIA's way to let programs of one user share a GPU."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import workers

CONTROL = "nvidia-cuda-mps-control"
ENDS_WITHIN_SECONDS = 15


class Mps:
    """The daemon starts when its environment is first asked for. Programs reach it through a folder of its own; programs without
    this environment have contexts outside of it."""

    def __init__(self, folder):
        self.folder, self.is_started = folder, False

    def environment(self):
        names = {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": self.folder}
        if not self.is_started:
            if not shutil.which(CONTROL):
                raise RuntimeError(f"there is no {CONTROL} on this machine")
            # The daemon leaves its output open: a pipe would never end.
            subprocess.run(
                [CONTROL, "-d"], env=workers.plain_environment() | names, check=True, timeout=30,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.is_started = True
            time.sleep(1)
        return names

    def stop(self):
        """Ends the daemon and its servers. Its clients must have ended. Returns what had to be killed."""
        if not self.is_started:
            return []
        self.is_started = False
        environment = workers.plain_environment() | {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_MPS_LOG_DIRECTORY": self.folder}
        try:
            subprocess.run([CONTROL], input="quit\n", text=True, env=environment, timeout=ENDS_WITHIN_SECONDS, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{CONTROL} quit: {error}", flush=True)
        deadline = time.monotonic() + ENDS_WITHIN_SECONDS
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return left

    def logs(self):
        found = {}
        for name in ("control.log", "server.log"):
            with contextlib.suppress(OSError), open(os.path.join(self.folder, name), errors="replace") as file:
                found[f"mps-{name}"] = file.read()
        return found

    def processes(self):
        """The daemon and its servers: they have our folder in their environment."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/comm") as file:
                    is_mps = file.read().startswith("nvidia-cuda-mps")
                if is_mps and workers.alive(int(name)):
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if self.folder.encode() in file.read():
                            found.append(int(name))
            except OSError:
                continue
        return found
