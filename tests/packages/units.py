"""The units, judged by systemd's own tools."""
import pathlib
import re
import shutil
import subprocess

import kit

SYSTEMD = pathlib.Path(__file__).resolve().parents[2] / "deploy/systemd"
# systemd-analyze counts from 0 (nothing is exposed) to 100. A box must have GPUs and make code at run
# time; the service of functions starts each as a user of its own.
EXPOSED_MOST = {"manager": 15, "box": 25, "host": 20, "worker": 25, "functions": 40}


def tell():
    if not shutil.which("systemd-analyze"):
        return "skipped: there is no systemd-analyze here"
    told = []
    for role, most in EXPOSED_MOST.items():
        unit = SYSTEMD / f"dxpu-{role}.service"
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True)
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if "dxpu" in line and "/usr/bin/dxpu is not executable" not in line]
        kit.hold(not complaints, "\n".join(complaints))
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", f"--threshold={most}", str(unit)], capture_output=True, text=True)
        level = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
        kit.hold(level, done.stdout + done.stderr)
        kit.hold(done.returncode == 0, f"{unit.name} is exposed by {level[1]}, more than {most / 10}")
        told.append(f"{role} {level[1]}")
        text = unit.read_text()
        kit.hold(f"ExecStart=/usr/bin/dxpu {role} --config /etc/dxpu/{role}.toml\n" in text, unit.name)
    return "exposure: " + ", ".join(told)
