"""What a call costs the program that makes it: instructions, which a busy machine counts as well as an idle one."""
import re
import subprocess

import kit


def tell(record):
    record.part("no call has more instructions than SPECIFICATION.md promises", promises)


def promises():
    run = subprocess.run([kit.dxpu, "bench", "api", "--check"], capture_output=True, text=True, timeout=300, env=kit.clean_environment())
    kit.hold(run.returncode == 0, run.stdout, run.stderr)
    counts = re.findall(r"^  (.*?) +(\d+) +\d+$", run.stdout, re.MULTILINE)
    kit.hold(len(counts) == 6, "not six counts:", run.stdout)
    by_name = {what: int(count) for what, count in counts}
    tcp, shm = by_name["a launch over TCP, polling"], by_name["the same over shared memory"]
    kit.hold(shm <= 1.02 * tcp, "a launch costs its thread more over shared memory than over TCP:", run.stdout)
    return ", ".join(f"{what} {count}" for what, count in counts)
