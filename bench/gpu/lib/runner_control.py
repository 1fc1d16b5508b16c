"""The driver's end of a runner: starts it, asks it, notices when it does not answer, starts it again."""

import json
import os
import select
import subprocess
import sys
import time

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Importing the frameworks, on a disk that may be cold.
START_SECONDS = 90
# A mode whose process was lost so often (does not start, does not answer, crashes) is given up: waiting for it again and again would
# cost the others their time.
LOSSES_MAX = 4


class RunnerFailed(Exception):
    """A runner answered with an error, or not at all."""


class RunnerControl:
    # What a process may take to end after it was told to.
    end_seconds = 5

    def __init__(self, mode, worker, place, device, is_tiny, log_path):
        self.mode, self.worker, self.place = mode, worker, place
        self.device, self.is_tiny, self.log_path = device, is_tiny, log_path
        self.process = None
        self.hello = None
        self.losses = 0

    def start(self):
        """Starts the process; `await_hello` waits until it is ready, so that several can start together."""
        program = [sys.executable, os.path.join(BENCH, "runner.py"), "--kind", self.mode.kind, "--ours", self.place.libraries]
        program += ["--device", self.device, *(["--tiny"] if self.is_tiny else [])]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.mode.command(self.worker, *program),
                env=client_environment(self.mode, self.place),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        os.set_blocking(self.process.stdout.fileno(), False)
        self._unread = b""
        self.hello = None

    def await_hello(self):
        try:
            self.hello = self._answer(START_SECONDS)
        except RunnerFailed as error:
            self._lose(str(error))

    def ask(self, limit, **request):
        """Sends a request and waits for its answer. A runner that fails to answer is ended and started when next asked."""
        if self.losses >= LOSSES_MAX:
            raise RunnerFailed(f"given up: its process was lost {self.losses} times")
        if self.process is None:
            self.start()
        if self.hello is None:
            self.await_hello()
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            self._lose(f"the process is gone: {error}; {self.last_words()}")
        return self._answer(limit)

    def _answer(self, seconds):
        deadline = time.monotonic() + seconds
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            readable = select.select([self.process.stdout], [], [], left)[0] if left > 0 else []
            if not readable:
                self._lose(f"no answer within {seconds:.0f} s; {self.last_words()}")
            chunk = self.process.stdout.read()
            if chunk == b"":
                self._lose(f"the process ended; {self.last_words()}")
            self._unread += chunk or b""
        line, _, self._unread = self._unread.partition(b"\n")
        said = json.loads(line)
        if "error" in said:
            if not said["is_usable"]:
                self.end()
            raise RunnerFailed(said["error"])
        return said

    def _lose(self, why):
        """Gives this process up; the next request starts another."""
        if self.process is not None:
            self.losses += 1
            self.end()
        raise RunnerFailed(why)

    def last_words(self):
        with open(self.log_path, errors="replace") as log:
            lines = [line.strip() for line in log.read()[-4000:].splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-600:]

    def end(self):
        if self.process is None:
            return
        process, self.process, self.hello = self.process, None, None
        try:
            process.stdin.write(b'{"do": "end"}\n')
            process.stdin.close()
            process.wait(self.end_seconds)
        except (OSError, subprocess.TimeoutExpired):
            # One that stands before the program passes this on to it, but not a kill.
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        process.stdout.close()


def client_environment(mode, place):
    """What a runner of this mode starts with: nothing of dxpu's but what `dxpu run` sets."""
    import workers

    cache = place.cache if mode.kind != "native" else place.make("native-cache")
    return workers.plain_environment() | {
        "XDG_CACHE_HOME": cache,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **dict(mode.environment),
    }
