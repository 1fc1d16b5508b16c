"""A real browser without a window: Chromium, told what to do over a pipe (its DevTools protocol)."""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import kit


def program():
    """The browser of this machine, if it has one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def pipe():
    """A pipe whose descriptors are neither 3 nor 4. Where standard input is closed, os.pipe() gives exactly these, and the shell that
    puts the browser's ends at 3 and 4 would close one of them while it makes the other."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high


class Browser:
    """One page in a browser with a profile of its own."""

    def __init__(self, width=1440, height=1000):
        self.profile = tempfile.mkdtemp(dir=kit.scratch)
        to_browser, self._out = pipe()
        self._in, from_browser = pipe()
        # The protocol is spoken on file descriptors 3 and 4.
        command = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        options = [
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile}",
            f"--window-size={width},{height}",
            # The pool's certificate is its own; what is tested here is the page.
            "--ignore-certificate-errors",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-proxy-server",
            "--hide-scrollbars",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", program(), *options, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest = b""
        self._number = 0
        #: What the page complained of: uncaught errors, refused files, violations of its policy.
        self.complaints = []
        try:
            self._prepare(width, height)
        except BaseException:
            self.__exit__()
            raise

    def _prepare(self, width, height):
        target = self._until_page()
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    session = None

    def _until_page(self):
        deadline = time.monotonic() + kit.HANG_SECONDS
        while time.monotonic() < deadline:
            targets = self.send("Target.getTargets")["targetInfos"]
            for target in targets:
                if target["type"] == "page":
                    return target["targetId"]
            time.sleep(0.05)
        raise kit.Wrong("the browser shows no page")

    def send(self, method, **parameters):
        """Asks, and waits for the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise kit.Wrong(f"{method}: {answer['error']['message']}")
                return answer["result"]

    def _receive(self):
        deadline = time.monotonic() + kit.HANG_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], deadline - time.monotonic())
            kit.hold(ready, "the browser does not answer")
            part = os.read(self._in, 1 << 20)
            kit.hold(part, "the browser is gone")
            self._rest += part
        message, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(message)
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            entry = message["params"]["entry"]
            self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        return message

    def open(self, url):
        result = self.send("Page.navigate", url=url)
        kit.hold("errorText" not in result, url, result.get("errorText"))
        self.until("location.protocol !== 'about:' && document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True)
        kit.hold("exceptionDetails" not in result, script, result.get("exceptionDetails"))
        return result["result"].get("value")

    def until(self, script, seconds=60):
        """Waits until an expression is true; how long it took."""
        shown = lambda: f"{script}; the page shows\n{self.text()}\n{self.complaints}"
        # While a page gives way to the next, there is nothing to ask.
        guarded = f"(() => {{ try {{ return Boolean({script}) }} catch {{ return false }} }})()"

        def holds():
            try:
                return self.run(guarded)
            except kit.Wrong as wrong:
                if "context" in str(wrong) or "navigated" in str(wrong):
                    return False
                raise

        return kit.until(shown, holds, seconds)

    def text(self):
        return self.run("document.body.innerText")

    def choose_file(self, selector, path):
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[path])

    def theme(self, name):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        picture = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=False)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self.profile, ignore_errors=True)
