"""What `dxpu model predict` makes of the profiles of a run. Needs no GPU, so it can be done later and elsewhere."""

import gzip
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import distance_report
import figures
import rounds

PREDICT_SECONDS = 120
# More than any PCIe link has: injection knows no network that is narrower.
NO_BANDWIDTH_LIMIT = "1000GB"
# The launch of a filler is best seen where the program, and not a full queue, sets the pace.
LAUNCH_SEEN_UP_TO_US = 8


# So many recordings of a workload are asked.
PROFILES_MAX = 60


def spread(items, count):
    """So many of them, evenly over the whole."""
    if len(items) <= count:
        return items
    return [items[round(at * (len(items) - 1) / (count - 1))] for at in range(count)]


class Prediction:
    def __init__(self, dxpu, results, folder):
        self.dxpu, self.results, self.folder = os.path.abspath(dxpu), results, folder
        self.pool = ThreadPoolExecutor(max(1, min(8, os.cpu_count() or 1)))

    def run(self, complain):
        for name, row in self.results["workloads"].items():
            try:
                if row.get("profiles"):
                    self.predict(row)
            except (OSError, ValueError, KeyError, RuntimeError, subprocess.SubprocessError) as error:
                complain(f"{name}: no prediction: {str(error)[:500]}")
            distance_report.compare(self.results, row)

    def predict(self, row):
        """The median of what several recordings predict, each taken among what it is held against."""
        chosen = spread([one for one in row["profiles"] if one.get("is_of_cycle")] or row["profiles"], PROFILES_MAX)
        row["predicted_from"] = min(chosen, key=lambda one: abs(one["ms_per_step"] - figures.median([o["ms_per_step"] for o in chosen])))
        row["predicted_from_count"] = len(chosen)
        files = [os.path.join(self.folder, one["file"]) for one in chosen]
        injected = ["--pcie-cost", "injected", "--bandwidth", NO_BANDWIDTH_LIMIT, *self.filler(row)]
        row["predicted_injected"] = {}
        for rtt in self.results["rtts_us"]:
            points = list(self.pool.map(lambda file: self.ask(file, "pcie", rtt, *injected), files))
            row["predicted_injected"][f"{rtt:g}"] = figures.median([point["kept_pct"] for point in points])
            for figure in ("native_replay_error_pct", "gap_us"):
                row[figure] = figures.median([point[figure] for point in points])
        base_us = distance_report.tcp_round_trip_us(self.results)
        delays = [key.partition("+")[2] or "none" for key in row.get("ms", {}) if key.startswith("tcp")]
        if base_us is None or not delays:
            return
        row["predicted_api"] = {}
        for delay in delays:
            rtt = base_us + distance_report.microseconds(delay)
            points = self.pool.map(lambda file: self.ask(file, "api", rtt, "--bandwidth", "10GB"), files)
            row["predicted_api"][delay] = figures.median([point["kept_pct"] for point in points])

    def filler(self, row):
        """What fillers cost where they were injected, in that very run, rather than where the profile was recorded."""
        words = []
        if filler := self.results.get("filler"):
            words += ["--filler", f"{filler['gpu_us']:.3f}us"]
        small = [rtt for rtt in self.results["rtts_us"] if rtt <= LAUNCH_SEEN_UP_TO_US]
        found = [rounds.added(row.get("cycles", []), rounds.injected_key(rtt)) for rtt in small]
        launches = [one["launch_us"] for one in found if one and one["launch_us"]]
        if launches or filler:
            words += ["--filler-launch", f"{min(launches) if launches else filler['host_us']:.3f}us"]
        return words

    def ask(self, profile, plane, rtt_us, *more):
        rtt = f"{rtt_us:.3f}us"
        words = [self.dxpu, "model", "predict", "--profile", profile, "--plane", plane, "--rtt", rtt, "--rtt-max", rtt, "--json", *more]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PREDICT_SECONDS)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return json.loads(done.stdout)


def compress(results, folder):
    """Profiles are text, and long."""
    for row in results["workloads"].values():
        for profile in row.get("profiles", []):
            path = os.path.join(folder, profile["file"])
            if os.path.exists(path):
                with open(path, "rb") as plain, gzip.open(f"{path}.gz", "wb", compresslevel=6) as packed:
                    shutil.copyfileobj(plain, packed)
                os.remove(path)


def decompress(results, folder):
    """As they were, for another prediction; the compressed files stay."""
    for row in results["workloads"].values():
        for profile in row.get("profiles", []):
            path = os.path.join(folder, profile["file"])
            if not os.path.exists(path) and os.path.exists(f"{path}.gz"):
                with gzip.open(f"{path}.gz", "rb") as packed, open(path, "wb") as plain:
                    shutil.copyfileobj(packed, plain)
