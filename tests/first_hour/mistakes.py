"""What goes wrong in a first hour, one case after the other: what dxpu said before, and what it says today."""
import contextlib
import os
import pty
import re
import socket
import subprocess
import threading
import time

import kit
from pool import Pool

HEAD = """# The errors of the first hour, before and after

A new user and an administrator tried dxpu and wrote down every sentence that was wrong or did not help. This page shows each of them:
what dxpu said *before*, and what it says *today*. Commit `40dcbfc` is the last one of before. Where the text before stands in its
source, it is quoted from there; where it came from a library, the words of the report are quoted and marked so.

*Today* is typed and compared by `tests/first_hour/errors target/release/dxpu`, on a real pool of this machine; it fails when dxpu says
anything else. What differs from run to run is written as `…`. `--write` writes this page anew.
"""


# Seconds. What is said at once or after 1.5 s (`TOLD_AFTER` of pool-client) must be said by then on two cores that others use too; before,
# it took 15 s and more.
SOON = 6


class Bench:
    """A pool to make mistakes in, and what was typed."""

    def __init__(self, pool):
        self.pool, self.lines = pool, []

    def note(self, text):
        self.lines.append(plain(text))

    def type(self, *words, code=0, within=None):
        """Types a command as the admin; what it said."""
        began = time.monotonic()
        result = self.pool.ask(*words)
        seconds = time.monotonic() - began
        said = result.stdout + result.stderr
        kit.hold(result.returncode == code, "dxpu", *words, "ended with", result.returncode, said)
        kit.hold(within is None or seconds < within, "dxpu", *words, "took", seconds, "s")
        self.note(f"$ dxpu {' '.join(words)}\n{said.rstrip()}")
        return said

    def quietly(self, *words):
        result = self.pool.ask(*words)
        kit.hold(result.returncode == 0, "dxpu", *words, result)
        return result.stdout

    def lease(self, *words):
        return re.search(r"l-[0-9a-f]{16}", self.quietly("lease", "create", *words)).group()

    def first_line(self, *words, within):
        """What a command says first, which it must say soon; the command is ended then."""
        command = [kit.dxpu, *words]
        environment = self.pool.environment | {"DXPU_CREDENTIAL": self.pool.admin}
        began = time.monotonic()
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            killer = threading.Timer(within, process.kill)
            killer.start()
            line = process.stderr.readline()
            killer.cancel()
            process.kill()
        kit.hold(line, "dxpu", *words, "said nothing for", within, "s")
        self.note(f"$ dxpu {' '.join(words)}\n{line.rstrip()}")


def plain(text):
    """Without what differs from run to run."""
    text = text.replace(kit.dxpu, "dxpu").replace(kit.scratch, "…")
    for pattern, instead in (
        (r"l-[0-9a-f]{16}", "l-…"), (r"\b127\.0\.0\.1:\d{2,}", "127.0.0.1:…"), (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z", "…Z"),
        (r"dxpu\[\d+\]", "dxpu[…]"), (r"…/\S+?/slot-\d", "…/slot-…"), (r"\S*/steady\.c:\d+: .* returned", "steady: a CUDA call returned"), (r"pool-\w+/", ""),
    ):
        text = re.sub(pattern, instead, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def tenant_without_leases(bench):
    bench.quietly("tenant", "set", "small", "--limit", "H200=2")
    bench.lease("--gpus", "4", "--model", "H200", "--tenant", "big")
    waits = bench.lease("--gpus", "2", "--model", "H200", "--tenant", "small")
    for limit in ("H200=1", "H200=0"):
        bench.quietly("tenant", "set", "small", "--limit", limit)
        bench.type("lease", "explain", waits)
    bench.quietly("lease", "release", waits)


def impossible(bench):
    for words in (["--model", "H2OO"], ["--memory", "999GiB"], ["--gpus", "9"], ["--gpus", "2", "--topology", "nvlink", "--model", "H200"],
                  ["--gpus", "2", "--model", "H200", "--tenant", "small"]):
        bench.type("lease", "create", *words, code=65, within=SOON)


def typos(bench):
    bench.type("tenant", "set", "vision", "--limit", "H2OO=1")
    bench.type("spare", "set", "H2OO", "1")


def memory(bench):
    waits = bench.lease("--memory", "50GiB", "--model", "H200", "--tenant", "vision")
    bench.type("lease", "explain", waits)
    bench.quietly("lease", "release", waits)


def lost_gpu(bench):
    pool = bench.pool
    with pool.borrow(kit.program("steady"), options=("--model", "soft")) as client:
        client.wait_for("working")
        [lease] = [lease for lease in pool.live_leases() if lease["tenant"] == "stories"]
        bench.quietly("gpu", "break", lease["grants"][0]["gpu"])
        client.process.wait(30)
        # For `log_lines`.
        pool.log_line = next(line for line in client.said().splitlines() if line.startswith("dxpu["))
        said = [line for line in plain(client.said()).splitlines() if line and line != "working"]
    kit.hold(any("your GPU" in line and "start the program again" in line.lower() for line in said), said)
    bench.note("$ dxpu run --gpus 1 -- ./steady        (its GPU breaks)\n" + "\n".join(re.sub(r"soft/\d", "soft/…", line) for line in said))


def nobody_there(bench):
    bench.type("gpu", "ls", "--manager", "https://127.0.0.1:1", code=64, within=SOON)
    bench.first_line("run", "--gpus", "1", "--manager", "https://127.0.0.1:1", "--", "./steady", within=SOON)


def silent_manager(bench):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        bench.first_line("gpu", "ls", "--manager", f"https://127.0.0.1:{silent.getsockname()[1]}", within=SOON)


def unknown_name(bench):
    bench.type("gpu", "ls", "--manager", "https://no-such-host.invalid:7500", code=64, within=SOON)
    bench.first_line("run", "--gpus", "1", "--manager", "https://no-such-host.invalid:7500", "--", "./steady", within=SOON)
    bench.type("run", "--worker", "tcp:no-such-host.invalid:7400", "--", "./steady", code=64, within=SOON)


def closed_pipe(bench):
    for words in ("audit ls", "completions bash"):
        environment = bench.pool.environment | {"DXPU_CREDENTIAL": bench.pool.admin, "dxpu": kit.dxpu}
        result = subprocess.run(["bash", "-c", f'"$dxpu" {words} | head -c 1 >/dev/null'], env=environment, capture_output=True, text=True)
        bench.note(f"$ dxpu {words} | head -c 1 >/dev/null\n{result.stderr}")


def two_ways(bench):
    bench.type("run", "--worker", "gpu-box:7400", "--gpus", "1", "--", "./steady", code=2)


def defaults(bench):
    for role in ("worker", "box"):
        said = bench.pool.ask(role, "--print-config").stdout
        words = re.sub(r"\n# ", " ", said)
        [line] = re.findall(r"memory [^.]*?GPU[^.]* in software \[default: [^\]]*\]|Memory of each soft GPU[^\]]*\]", words, re.I)
        bench.note(f"$ dxpu {role} --print-config        (the part about memory)\n{line}")
    [line] = re.findall(r"What executes[^\]]*\]", re.sub(r"\n# ", " ", bench.pool.ask("worker", "--print-config").stdout))
    bench.note(f"$ dxpu worker --print-config        (the part about --driver)\n{line}")


def settings_of_a_box(bench):
    box = next(box for box in bench.pool.boxes if box.name == "soft")
    rows = []
    for _ in range(2):
        rows.append([row for row in bench.quietly("box", "ls").splitlines() if row.startswith("soft ")][0])
        box.process.terminate()
        box.process.wait(20)
        # Only its folder is named: the rest is what it was started with at first.
        with open(box.file("agent.log"), "ab") as log:
            box.process = subprocess.Popen([kit.dxpu, "box", "--state-dir", box.state], env=bench.pool.environment,
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        kit.until(lambda: f"the box reports again: {box.log()[-800:]}", lambda: box.log().count("serves 2 slots") >= len(rows) + 1, 20)
    bench.note("$ dxpu box ls        (started with --soft 2 --kind nvlink --rack r7)\n" + fields(rows[0]))
    bench.note("$ dxpu box ls        (started again with --state-dir alone)\n" + fields(rows[1]))
    kit.hold(fields(rows[0]) == fields(rows[1]), rows)


def fields(row):
    """Name, kind, rack, state and count of a row of `dxpu box ls`."""
    return "  ".join(row.split()[:5])


def spellings(bench):
    for spelling in ("same_box", "same-box"):
        # The GPU of the lease before is cleaned first.
        kit.until("a soft GPU is free", lambda: any(gpu["state"] == "free" and not gpu.get("unready") and gpu["model"] == "soft" for gpu in bench.pool.gpus().values()))
        made = bench.type("lease", "create", "--gpus", "1", "--model", "soft", "--topology", spelling)
        bench.quietly("lease", "release", re.search(r"l-[0-9a-f]{16}", made).group())


def audit(bench):
    said = bench.quietly("audit", "ls").splitlines()
    kit.hold(re.match(r" +\d+  \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ", said[1]), said[1])
    bench.note("$ dxpu audit ls | head -2\n" + re.sub(r" +", " ", "\n".join(said[:2])))


def log_lines(bench):
    kit.hold(re.match(r"dxpu\[\d+\] \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ WARN ", bench.pool.log_line), bench.pool.log_line)
    bench.note("a line of the client library's log, with the time of day in UTC:\n" + bench.pool.log_line.split(" (")[0] + " …")


def closed_terminal(bench):
    folder = os.path.join(kit.scratch, "closed")
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(kit.dxpu, [kit.dxpu, "up", "--boxes", "1", "--gpus", "1", "--memory", "64MiB", "--listen", f"127.0.0.1:{kit.free_port()}",
                             "--state-dir", folder], kit.clean_environment() | {"HOME": kit.scratch})
    seen = b""
    while b"The pool is up" not in seen:
        seen += os.read(terminal, 4096)
    kit.until("a worker runs", lambda: any(b"worker" in words for words in parts(folder)), 20)
    os.close(terminal)
    os.waitpid(pid, 0)
    with contextlib.suppress(kit.Wrong):
        kit.until("its parts end", lambda: not parts(folder), 10)
    bench.note(f"processes of `dxpu up` 10 s after its terminal was closed: {len(parts(folder))}")
    kit.hold(not parts(folder), parts(folder))


def parts(folder):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read()
            if folder.encode() in words:
                found.append(words)
    return found


def dead_box(bench):
    state = lambda: bench.pool.json("gpu", "show", "rack-9/0")["state"]
    kit.until(lambda: f"the box counts as dead: {state()}", lambda: state() == "absent", 20)
    # What it last told of its use is shown, if it lived long enough to tell.
    shown = bench.quietly("gpu", "ls", "--box", "rack-9").replace("absent     -  ", "absent    0%  ")
    bench.note("$ dxpu gpu ls --box rack-9\n" + shown)
    waits = bench.lease("--model", "A100")
    bench.type("lease", "explain", waits)


SAYS_WHY = "lease l-… waits; `dxpu lease explain l-…` says why"

# What, what was said before, and what is typed today. The dead box comes last: it takes some seconds to count as dead.
CASES = (
    ("`lease explain` advises what cannot help", tenant_without_leases,
     "  - quota of tenant small for H200 is 1, 0 used\n  - 0 of 2 H200 are free; 4 are leased\n…\n"
     "  - release a lease of tenant small on H200, or raise its limit of 1\n  - 2 more H200 free", "source"),
    ("What the pool can never give is waited for", impossible, SAYS_WHY + "\n(and it waits for ever)", "source"),
    ("Typos of models are accepted", typos, "of model H2OO, 1 GPU is held back when free", "source"),
    ("A wish for memory is told as a lack of GPUs", memory, "  - 0 of 1 GPUs are free; 4 are leased", "source"),
    ("A lost GPU is told in the words of a TLS library", lost_gpu,
     "worker tls:… is lost: peer closed connection without sending TLS close_notify. Every CUDA call fails from now on; start the program "
     "again\n"
     "dxpu: GPU soft/… is lost: broken on purpose; the lease has soft/… instead. The program sees CUDA errors; let it end and start it again",
     "source, with TLS's sentence from the report"),
    ("A manager that is down is tried in silence", nobody_there, "(nothing for 15 s)\ndxpu: no manager of the pool answers (https://127.0.0.1:1)",
     "source"),
    ("A manager that is silent is waited for in silence", silent_manager, "(nothing for 15 s)\ndxpu: no manager of the pool answers (https://127.0.0.1:…)",
     "source"),
    ("A name that does not resolve", unknown_name, "(30 silent seconds)", "report"),
    ("A reader that goes away early", closed_pipe, "thread 'main' panicked at … failed printing to stdout: Broken pipe (os error 32)", "report: a panic; the words are Rust's"),
    ("`--worker` with `--gpus`", two_ways, "(--worker was ignored without a word)", "source"),
    ("`worker` and `box` have different defaults", defaults,
     "worker: --driver soft, even on a machine with GPUs\nbox: the GPUs of the machine, unless --soft", "source"),
    ("A box forgets its settings at a restart", settings_of_a_box, "(a box that was started again without its options had other GPUs, kind and rack)", "report"),
    ("`same_box` and `same-box`, and a lease that is over after 30 s", spellings,
     "--topology: How close together: any, same_box or nvlink        (same-box was taken too, and only same_box was shown)\n"
     "lease l-… has soft/1        (for 30 s, which it did not say)", "source"),
    ("`audit ls` has no header, and its times are milliseconds", audit, "       1  1794735191000  done     token.create  …", "source"),
    ("Logs have seconds since 1970", log_lines, "dxpu[…] 1794735191 WARN worker … is lost …", "source"),
    ("Workers stay behind when a terminal is closed", closed_terminal, "(they ran on)", "report"),
    ("GPUs of a dead box are free", dead_box, "rack-9/0  A100  80.0 GiB  free", "report: shown as free"),
)


def page():
    sections = [HEAD]
    with Pool() as pool:
        lost = pool.simulated_box("rack-9", "A100", 1)
        pool.simulated_box("rack-1", "H200", 4)
        pool.box("soft", "--soft", "2", "--memory", "64MiB", "--kind", "nvlink", "--rack", "r7")
        kit.until(lambda: f"all join: {pool.logs()}", lambda: len(pool.gpus()) == 7, 30)
        pool.all_free()
        lost.kill()
        for title, body, before, source in CASES:
            bench = Bench(pool)
            body(bench)
            today = "\n\n".join(bench.lines)
            sections.append(f"## {title}\n\nbefore ({source}):\n\n{indented(before)}\n\ntoday:\n\n{indented(today)}\n")
    return "\n".join(sections)


def indented(text):
    return "\n".join(("    " + line).rstrip() for line in text.splitlines())
