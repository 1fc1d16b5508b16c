"""A program that takes orders, a line of JSON each, and answers with lines of JSON."""
import contextlib
import json
import subprocess

import kit


class Ordered:
    # How long it may take to end after its input has ended, before it is killed.
    ENDS_WITHIN_SECONDS = 1

    def __init__(self, command, environment):
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.first = self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A program that `dxpu run` started in a pool ends when its input does.
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.ENDS_WITHIN_SECONDS)
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def order(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        kit.hold(line, "it ended:", line or self.last_words())
        return json.loads(line)

    def last_words(self):
        """Why it has ended, if it has."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.ENDS_WITHIN_SECONDS)
        return self.process.stderr.read()[:900] if self.process.returncode is not None else ""
