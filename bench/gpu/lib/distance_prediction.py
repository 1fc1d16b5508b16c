"""What `dxpu model predict` makes of the profiles of a run. Needs no GPU, so it can be done later and elsewhere."""

import gzip
import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import distance_report
import rounds

PREDICT_SECONDS = 120
# More than any PCIe link has: injection knows no network that is narrower.
NO_BANDWIDTH_LIMIT = "1000GB"
# The launch of a filler is best seen where the program, and not a full queue, sets the pace.
LAUNCH_SEEN_UP_TO_US = 8


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
        # The recording that was disturbed least: whose step is nearest to the native one.
        native = row.get("ms", {}).get("native", 0.0)
        chosen = min(row["profiles"], key=lambda profile: abs(profile["ms_per_step"] - native))
        row["predicted_from"] = chosen
        profile = os.path.join(self.folder, chosen["file"])
        injected = ["--pcie-cost", "injected", "--bandwidth", NO_BANDWIDTH_LIMIT, *self.filler(row)]
        rtts = self.results["rtts_us"]
        points = self.pool.map(lambda rtt: self.ask(profile, "pcie", rtt, *injected), rtts)
        row["predicted_injected"] = {}
        for rtt, point in zip(rtts, points):
            row["predicted_injected"][f"{rtt:g}"] = point["kept_pct"]
            row["native_replay_error_pct"], row["gap_us"] = point["native_replay_error_pct"], point["gap_us"]
        base_us = distance_report.tcp_round_trip_us(self.results)
        delays = [key.partition("+")[2] or "none" for key in row.get("ms", {}) if key.startswith("tcp")]
        if base_us is None or not delays:
            return
        distances = [base_us + distance_report.microseconds(delay) for delay in delays]
        points = self.pool.map(lambda rtt: self.ask(profile, "api", rtt, "--bandwidth", "10GB"), distances)
        row["predicted_api"] = {delay: point["kept_pct"] for delay, point in zip(delays, points)}

    def filler(self, row):
        """What fillers cost where they were injected, in that very run, rather than where the profile was recorded."""
        words = []
        if filler := self.results.get("filler"):
            words += ["--filler", f"{filler['gpu_us']:.3f}us"]
        small = [rtt for rtt in self.results["rtts_us"] if rtt <= LAUNCH_SEEN_UP_TO_US]
        found = [rounds.added(row.get("rounds", []), rounds.injected_key(rtt)) for rtt in small]
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
