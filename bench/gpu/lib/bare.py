"""What the bare transports move on this machine now, to hold the copies against."""

import json
import subprocess

import bare_sockets

# Bulk lanes of a client, and so the streams of the bare measurement.
LANES = 4
# Names of `dxpu bench api` and of our modes.
_NAMES = {"tcp": "tcp", "tcp_tls": "tls", "unix": "unix", "shm": "shm"}


def measure(worker, megabytes=256, seconds=90):
    """Bare gigabytes a second by mode: as many streams as a client has lanes, memory to memory; and a note when it is not dxpu's own.

    `dxpu bench api` measures the bare transports beside the soft driver; only what it says of the bare ones is taken.
    """
    command = [worker.dxpu, "bench", "api", "--json", "--rounds", "500", "--repeat", "1", "--megabytes", str(megabytes)]
    try:
        done = subprocess.run(command, env=worker.environment, capture_output=True, text=True, timeout=seconds, check=True)
        found = json.loads(done.stdout)["transports"]
    except (subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
        said = getattr(error, "stderr", None) or error
        note = f"bare TCP by plain sockets, for dxpu bench api fails: {str(said).strip()[-300:]}"
        return {"tcp": {"gbps": bare_sockets.measure(megabytes, LANES)}}, note
    return {_NAMES[name]: {"gbps": row["raw_gbps"], "rtt_us": row["raw_rtt_us_p50"]} for name, row in found.items()}, None
