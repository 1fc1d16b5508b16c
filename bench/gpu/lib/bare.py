"""What the bare transports move on this machine now, to hold the copies against."""

import json
import subprocess

# Names of `dxpu bench api` and of our modes.
_NAMES = {"tcp": "tcp", "tcp_tls": "tls", "unix": "unix", "shm": "shm"}


def measure(worker, megabytes=256, seconds=90):
    """Bare gigabytes a second and round trips in microseconds by mode: as many streams as a client has lanes, memory to memory.

    `dxpu bench api` measures them beside the soft driver; only what it says of the bare transport is taken.
    """
    command = [worker.dxpu, "bench", "api", "--json", "--rounds", "500", "--repeat", "1", "--megabytes", str(megabytes)]
    done = subprocess.run(command, env=worker.environment, capture_output=True, text=True, timeout=seconds)
    if done.returncode != 0:
        raise RuntimeError(f"dxpu bench api ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    found = json.loads(done.stdout)["transports"]
    return {_NAMES[name]: {"gbps": row["raw_gbps"], "rtt_us": row["raw_rtt_us_p50"]} for name, row in found.items()}
