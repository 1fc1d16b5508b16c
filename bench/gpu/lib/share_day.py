"""A day in minutes: the online load follows the hours, each hour once without and once with an offline program beside it.

Both windows of an hour come one after the other, in turns the first, so that what changes slowly changes both. Each kind of fault
happens once, in a window with the offline program.
"""

import time

import gpu_activity
import share_faults
from share_figures import HOURS, day_load, longest_around, mean, online_figures, percentile, rate, ratio

# The offline program's first steps are not measured.
WARM_SECONDS = 0.2


def fault_hours(kinds):
    """At which hour each kind happens: evenly over the day."""
    return {int((at + 0.5) * HOURS / len(kinds)): kind for at, kind in enumerate(kinds)}


class Day:
    def __init__(self, options, programs, rows, matrix):
        self.options, self.programs, self.rows, self.matrix = options, programs, rows, matrix
        self.window_seconds = options.day / (2 * HOURS)

    def measure(self, request, work):
        about = {"row": "day", "side": "gate", "request": request, "work": work}
        self.matrix.works_alone(work)
        self.rows.tried(self.programs, about, self.run, about)

    def run(self, about):
        request, work = about["request"], about["work"]
        self.matrix.service(request)
        online, offline = self.programs.pair("gate", request, work)
        # A start happens to all of them, before the day begins.
        kinds = [kind for kind in self.options.fault_kinds if kind != "start"]
        hours = fault_hours(kinds)
        victims = {}
        for kind in kinds:
            victims |= {kind: victim for victim in share_faults.start(self.programs, "gate", self.options.scheme, kind, 1)}
        activity = gpu_activity.Activity()
        windows, latencies = [], {False: [], True: []}
        try:
            for hour in range(HOURS):
                for is_shared in (False, True) if hour % 2 else (True, False):
                    if self.rows.is_time_over():
                        break
                    kind = hours.get(hour) if is_shared else None
                    fault = (kind, victims.pop(kind)) if kind in victims else None
                    window, answer = self.window(request, work, hour, is_shared, activity, online, offline, fault)
                    windows.append(window)
                    latencies[is_shared] += answer["latencies_us"]
        finally:
            activity.stop()
            for victim in victims.values():
                victim.end()
            self.programs.stop_neighbours()
        whole = {
            name: self.whole(windows, latencies[is_shared], is_shared) for name, is_shared in (("without", False), ("with", True))
        }
        base = self.matrix.rate_alone.get(("slices", work))
        for part in whole.values():
            part["offline_of_alone"] = ratio(part["offline_per_second"], base)
        told = {"seconds": self.options.day, "why_no_activity": activity.why_not, "windows": windows, "whole": whole}
        self.rows.add(about | told)

    def window(self, request, work, hour, is_shared, activity, online, offline, fault):
        load, seconds = day_load(hour), self.window_seconds
        if is_shared:
            offline.order(do="offline", work=work, seconds=10 * seconds + 60, stop=True)
        # Also without the offline program: the online one has the same pauses.
        time.sleep(WARM_SECONDS)
        begun, began = activity.begin(), time.monotonic()
        online.order(**self.matrix.online_order(request, load), seed=hour, seconds=seconds)
        happened = None
        if fault:
            time.sleep(seconds / 4)
            happened = share_faults.happen(*fault)
        answer = online.answer(90 + 2 * seconds)
        ended, found = time.monotonic(), activity.end(begun)
        window = {"hour": hour, "load": load, "is_shared": is_shared, **found}
        window["online"] = online_figures(answer, self.matrix.service(request))
        if is_shared:
            offline.order(do="stop")
            window["offline_per_second"] = rate(offline.answer()["ends"], began, ended)
        if happened:
            longest = longest_around(answer, happened["since"], happened["until"])
            window["fault"] = {"kind": fault[0], "said": happened["said"], "longest_us": longest}
        return window, answer

    def whole(self, windows, latencies, is_shared):
        mine = [window for window in windows if window["is_shared"] == is_shared]
        calm = [window["online"]["p99_us"] for window in mine if "fault" not in window]
        return {
            **{name: mean(window[name] for window in mine) for name in gpu_activity.NAMES},
            "requests": len(latencies),
            "right": all(window["online"]["right"] for window in mine),
            "p50_us": percentile(latencies, 0.5),
            "p99_us": percentile(latencies, 0.99),
            "worst_p99_us": max((p99 for p99 in calm if p99), default=None),
            "offline_per_second": mean(window.get("offline_per_second") for window in mine),
        }
