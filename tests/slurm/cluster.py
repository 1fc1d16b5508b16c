"""A cluster of Slurm in a folder of its own: munged, slurmctld and several slurmd of the system's packages, on loopback."""
import os
import pathlib
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time

import kit

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "slurm"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
# Root may not ask for burst buffers, so jobs belong to users that every Debian has.
USERS = ("nobody", "games")

CONF = """
ClusterName=stories
SlurmctldHost={host}(127.0.0.1)
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=10
SlurmctldPort={port}
SlurmctldPidFile={folder}/state/slurmctld.pid
SlurmdPidFile={folder}/slurmd/%n.pid
SlurmdSpoolDir={folder}/slurmd/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=5
KillWait=2
InactiveLimit=0
MinJobAge=600
MessageTimeout=30
BatchStartTimeout=60
BurstBufferType=burst_buffer/lua
SchedulerParameters=bb_array_stage_cnt=10,sched_interval=3,bf_interval=3,requeue_setup_env_fail
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PrologFlags=Alloc
Prolog={folder}/etc/prolog
Epilog={folder}/etc/epilog
TaskProlog={folder}/etc/task-prolog
HealthCheckProgram={folder}/etc/health-check
HealthCheckInterval=10
SlurmctldDebug=verbose
SlurmdDebug=verbose
DebugFlags=BurstBuffer
"""


def missing():
    return [name for name in NEEDED if not shutil.which(name)]


def opened(link):
    try:
        return os.readlink(link)
    except OSError:
        return None


class Cluster:
    def __init__(self, folder, dxpu, credential, libraries, nodes=3, cpus=8):
        self.folder = pathlib.Path(folder)
        self.etc = self.folder / "etc"
        self.nodes = [f"n{number}" for number in range(nodes)]
        self.processes = {}
        self.submitted = []
        slurm = pwd.getpwnam("slurm")
        for name, mode in (("etc", 0o755), ("munge", 0o755), ("state", 0o755), ("log", 0o777), ("slurmd", 0o755), ("run", 0o755), ("out", 0o1777)):
            (self.folder / name).mkdir()
            (self.folder / name).chmod(mode)
        os.chown(self.folder / "state", slurm.pw_uid, slurm.pw_gid)
        self.conf = self.etc / "slurm.conf"
        host = socket.gethostname().split(".")[0]
        lines = CONF.format(folder=self.folder, host=host, port=kit.free_port())
        for node in self.nodes:
            lines += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={kit.free_port()} CPUs={cpus}\n"
        lines += "PartitionName=main Nodes=ALL Default=YES PriorityTier=1\nPartitionName=urgent Nodes=ALL PriorityTier=9\n"
        self.conf.write_text(lines)
        self.environment = kit.clean_environment() | {"SLURM_CONF": str(self.conf)}
        # What an operator copies and edits: as they are shipped, but for the paths.
        own = self.etc / "credential.json"
        shutil.copy(credential, own)
        own.chmod(0o600)
        os.chown(own, slurm.pw_uid, slurm.pw_gid)
        self.node_credential = self.etc / "node-credential.json"
        shutil.copy(credential, self.node_credential)
        self.node_credential.chmod(0o600)
        self.usage = self.folder / "state" / "usage"
        self.put("burst_buffer.conf", {})
        self.put("burst_buffer.lua", {"/usr/bin/dxpu": dxpu, "/etc/dxpu/slurm.json": own, "/var/log/slurm/dxpu-usage": self.usage,
                                      "FORGOTTEN_AFTER = 55": "FORGOTTEN_AFTER = 20", "logger -t dxpu-slurm": f"echo >> {self.folder}/state/mended"})
        # Several nodes are on this machine: each has files of its own.
        for name in ("prolog", "task-prolog", "epilog", "health-check"):
            self.put(name, {
                "/usr/bin/dxpu": dxpu, "/etc/dxpu/slurm.json": self.node_credential,
                "/run/dxpu-slurm": f"{self.folder}/run/$SLURMD_NODENAME",
                "logger -t dxpu-slurm": f"tee -a {self.folder}/log/nodes",
                "LIBRARIES=\n": f"LIBRARIES={libraries}\n",
            })

    def put(self, name, changes):
        text = (DEPLOY / name).read_text()
        for old, new in changes.items():
            text = text.replace(old, str(new))
        (self.etc / name).write_text(text)
        (self.etc / name).chmod((DEPLOY / name).stat().st_mode & 0o755 | 0o444)

    def __enter__(self):
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        self.start("munged", "munged", "-F", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                   f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed")
        kit.until("munged listens", lambda: (munge / "socket").exists(), 60)
        self.start("slurmctld", "slurmctld", "-D", "-c")
        for node in self.nodes:
            self.start_node(node)
        kit.until(lambda: f"nodes are idle: {self.ask('sinfo', '-Nho', '%N %T')}\n{self.logs()}", self.is_idle, 120)
        return self

    def is_idle(self):
        states = self.run("sinfo", "-Nho", "%N %T").stdout.split("\n")
        return {line for line in states if line} == {f"{node} idle" for node in self.nodes}

    def is_idle_but_for_jobs(self):
        states = [line.split()[1] for line in self.run("sinfo", "-Nho", "%N %T").stdout.split("\n") if line]
        return len(states) >= len(self.nodes) and all(state in ("idle", "mixed", "allocated") for state in states)

    def __exit__(self, *_):
        for name in reversed(list(self.processes)):
            self.end(name)
        # Watchers of jobs that still wait, after a story that failed: they have this cluster's credential on their command lines.
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and str(self.etc / "credential.json").encode() in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def start(self, name, *words):
        with open(self.folder / "log" / f"{name}.out", "ab") as log:
            self.processes[name] = subprocess.Popen(words, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def start_controller(self):
        self.start("slurmctld", "slurmctld", "-D")

    def start_node(self, node):
        (self.folder / "slurmd" / node).mkdir(exist_ok=True)
        self.start(node, "slurmd", "-D", "-N", node)

    def end(self, name, number=signal.SIGTERM):
        process = self.processes.pop(name)
        process.send_signal(number)
        try:
            # slurmctld waits for ever when slurmscriptd crashes meanwhile (22.05: with many calls under way), and a service manager ends it.
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_node(self, node):
        """As a machine that loses its power: slurmd and everything of its jobs is gone at once."""
        self.processes[node].kill()
        self.processes.pop(node).wait()
        for pid in self.of_node(node):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def of_node(self, node):
        """The processes that slurmd of this node has started: they have its name in their environment, or its log open."""
        found = []
        word, log = f"SLURMD_NODENAME={node}".encode(), str(self.folder / "log" / f"slurmd.{node}")
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes()
                is_ours = str(self.folder).encode() in environment and word in environment.split(b"\0")
                if is_ours or any(opened(link) == log for link in (entry / "fd").iterdir()):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def run(self, *words, user=None, seconds=60):
        options = {}
        if user:
            who = pwd.getpwnam(user)
            options = {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
        return subprocess.run(words, env=self.environment | {"HOME": "/nonexistent"}, cwd=self.folder / "out", stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=seconds, **options)

    def ask(self, *words, user=None):
        result = self.run(*words, user=user)
        kit.hold(result.returncode == 0, *words, "ended with", result.returncode, result.stdout, result.stderr, self.logs())
        return result.stdout

    def submit(self, script, *options, user=USERS[0]):
        """The number of the job."""
        path = self.folder / "out" / f"script-{time.monotonic_ns()}.sh"
        path.write_text(script)
        job = int(re.search(r"job (\d+)", self.ask("sbatch", "--output=%A_%a.%j.said", *options, str(path), user=user))[1])
        self.submitted.append(job)
        return job

    def job(self, number):
        """What Slurm says of a job, as a dictionary. Several are on one line, but for those with spaces in their values."""
        found = {}
        for line in self.run("scontrol", "show", "job", str(number)).stdout.split("\n\n")[0].splitlines():
            line = line.strip()
            if line.startswith(("AdminComment=", "BurstBuffer=", "Comment=", "Command=")):
                name, _, value = line.partition("=")
                found[name] = value
            else:
                found.update(word.split("=", 1) for word in line.split() if "=" in word)
        return found

    def state(self, number):
        return self.job(number).get("JobState", "")

    def jobs(self):
        """Numbers and states of all jobs that Slurm knows."""
        lines = self.ask("squeue", "--noheader", "--all", "--states=all", "--format", "%A %T").split("\n")
        return {int(number): state for number, state in (line.split() for line in lines if line)}

    def mended(self):
        """How many jobs `burst_buffer.lua` has queued again because Slurm had forgotten them."""
        told = self.folder / "state" / "mended"
        return told.read_text().count("is queued again") if told.exists() else 0

    def said(self, number):
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / "out").glob(f"*.{number}.said")))

    def log(self, name):
        try:
            return (self.folder / "log" / name).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def logs(self):
        told = []
        for path in sorted((self.folder / "log").iterdir()):
            told += [f"{path.name}: {line}" for line in path.read_text(errors="replace").splitlines()[-12:]]
        return "\n".join(told)
