"""A stand-in for systemd: it starts and ends services as their units say, and hears what they say over NOTIFY_SOCKET.

`systemctl` in the root is a script that leaves its words in a folder; a thread here carries them out and answers. So the packages'
scripts are tried as they are.
"""
import os
import shlex
import signal
import socket
import subprocess
import threading
import time

SYSTEMCTL = """#!/bin/sh
# Leaves the order for the stand-in, and waits for its answer.
order=$(mktemp /run/stand-in/order.XXXXXX)
for word; do echo "$word"; done > "$order.words"
mv "$order.words" "$order.ready"
while [ ! -e "$order.answer" ]; do sleep 0.05; done
exit "$(cat "$order.answer")"
"""


class Service:
    def __init__(self, root, name):
        self.root, self.name, self.process, self.said, self.user = root, name, None, [], None

    def settings(self):
        """The unit's [Service], with what its drop-ins say last."""
        files = [self.root.path(f"/lib/systemd/system/{self.name}")]
        files += sorted(self.root.path(f"/run/systemd/system/{self.name}.d").glob("*.conf"))
        found = {}
        for file in files:
            for line in file.read_text().splitlines():
                key, equals, value = line.partition("=")
                if equals and not line.startswith(("#", "[")):
                    found[key] = value
        return found

    def start(self):
        settings = self.settings()
        place = self.root.path(f"/run/notify-{self.name}")
        place.unlink(missing_ok=True)
        heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        heard.bind(str(place))
        place.chmod(0o777)
        environment = dict(pair.split("=", 1) for pair in settings["Environment"].split())
        environment |= {"NOTIFY_SOCKET": f"/run/notify-{self.name}", "HOME": "/"}
        if "WatchdogSec" in settings:
            environment["WATCHDOG_USEC"] = str(int(settings["WatchdogSec"]) * 1_000_000)
        user = settings["User"]
        lines = self.root.path("/etc/passwd").read_text().splitlines()
        self.user = next(int(line.split(":")[2]) for line in lines if line.startswith(user + ":"))
        command = self.root.command(*shlex.split(settings["ExecStart"]), user=f"{user}:{user}", environment=environment)
        self.said = []
        with open(self.log(), "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        threading.Thread(target=self._listen, args=(heard, self.said), daemon=True).start()

    @staticmethod
    def _listen(heard, said):
        while True:
            said.append(heard.recv(256).decode().strip())

    def log(self):
        return self.root.path(f"/run/{self.name}.log")

    def is_active(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        if not self.is_active():
            return
        settings = self.settings()
        group = self.members()
        self.process.send_signal(getattr(signal, settings.get("KillSignal", "SIGTERM")))
        self.process.wait(60)
        if settings.get("KillMode") != "process":
            for pid in group:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def members(self):
        """The service's processes: those of its user, which has no others."""
        return self.root.processes_of({self.user})


class ServiceManager:
    def __init__(self, root):
        self.root, self.services, self.orders = root, {}, []
        self.is_over = threading.Event()
        root.path("/run/systemd/system").mkdir(parents=True)
        root.path("/run/stand-in").mkdir()
        script = root.path("/usr/local/bin/systemctl")
        script.write_text(SYSTEMCTL)
        script.chmod(0o755)
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def service(self, name):
        return self.services.setdefault(name, Service(self.root, name))

    def _serve(self):
        while not self.is_over.is_set():
            for ready in sorted(self.root.path("/run/stand-in").glob("*.ready")):
                words = ready.read_text().split("\n")[:-1]
                ready.unlink()
                self.orders.append(words)
                unfinished = ready.with_suffix(".unfinished")
                unfinished.write_text(str(self._obey(words)))
                unfinished.rename(ready.with_suffix(".answer"))
            time.sleep(0.02)

    def _obey(self, words):
        verb = next(word for word in words if not word.startswith("-"))
        services = [self.service(word) for word in words if word.endswith(".service")]
        if verb == "daemon-reload":
            return 0
        if verb == "is-active":
            return 0 if all(service.is_active() for service in services) else 3
        for service in services:
            if verb == "try-restart" and service.is_active() or verb == "restart":
                service.stop()
                service.start()
            elif verb == "enable" and "--now" in words or verb == "start":
                service.start()
            elif verb == "disable" and "--now" in words or verb == "stop":
                service.stop()
        return 0 if verb in ("try-restart", "restart", "enable", "disable", "start", "stop") else 1

    def stop(self):
        """Whatever happened, no process stays."""
        for service in self.services.values():
            for pid in service.members():
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if service.process is not None:
                service.process.kill()
                service.process.wait()
        self.is_over.set()
        self.thread.join()
