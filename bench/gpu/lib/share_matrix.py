"""Rows of pairs: programs alone, pairs on all sides, and whether results beside another program have the bits they have alone."""

import statistics
import time

from share_figures import online_figures, rate, ratio
from share_page import between
from share_sides import SIDES

# The first steps after a pause find cold caches and clocks.
WARM_SECONDS = 0.5
SERVICE_COUNT = 50
VERIFY_LOAD = 0.5


class Matrix:
    def __init__(self, options, programs, rows):
        self.options, self.programs, self.rows = options, programs, rows
        self.sides, self.services = options.sides, rows.results["service_us"]
        # What programs alone had: p99 by plane, request and load; steps a second by plane and work.
        self.p99_alone, self.rate_alone = {}, {}
        self.digests = {}
        native = ["native"] if any(SIDES[side].is_native for side in [*self.sides, *options.sides_once]) else []
        ours = [side for side in self.sides if SIDES[side].classes]
        self.sides_alone = ["slices", *ours, *native]

    def measure(self, load, requests, works):
        """All rows of one load."""
        once = self.options.sides_once if load == self.options.loads[0] else []
        for request in requests:
            for side in self.sides_alone:
                self.online_alone_once(side, request, load)
            for work in works:
                self.works_alone(work)
                for _ in range(self.options.rounds):
                    for side in [*once, *self.sides]:
                        about = {"row": "both", "side": side, "request": request, "work": work, "load": load}
                        self.rows.tried(self.programs, about, self.both, about)

    def online_alone_once(self, side, request, load):
        if (side, request, load) not in self.p99_alone:
            about = {"row": "online alone", "side": side, "request": request, "load": load}
            self.rows.tried(self.programs, about, self.online_alone, about)

    def works_alone(self, work):
        """Once in a run."""
        for side in self.sides_alone:
            if (side, work) not in self.rate_alone:
                about = {"row": "offline alone", "side": side, "work": work}
                self.rows.tried(self.programs, about, self.offline_alone, about)

    def service(self, request):
        """How long a request takes alone and dedicated. Loads of all sides are told by it, so that all have the same arrivals."""
        if request not in self.services:
            online = self.programs.one("slices", "online", "request", request)
            found = [online.do(do="service", request=request, count=SERVICE_COUNT)["service_us"] for _ in range(3)]
            self.services[request] = statistics.median(found)
        return self.services[request]

    def online_order(self, request, load):
        return {"do": "online", "request": request, "gap_us": self.service(request) / load}

    def figures(self, answer, about):
        found = online_figures(answer, self.service(about["request"]))
        base = self.p99_alone.get((SIDES[about["side"]].plane, about["request"], about["load"]))
        # Where there is no native row, as on GPUs in software.
        base = base or self.p99_alone.get(("slices", about["request"], about["load"]))
        return found | {"p99_of_alone": ratio(found["p99_us"], base)}

    def offline_figures(self, answer, about, per_second):
        work = about["work"]
        base = self.rate_alone.get((SIDES[about["side"]].plane, work)) or self.rate_alone.get(("slices", work))
        return {"per_second": per_second, "of_alone": ratio(per_second, base), "right": answer["right"]}

    def online_alone(self, about):
        order = self.online_order(about["request"], about["load"])
        online = self.programs.one(about["side"], "online", "request", about["request"])
        answer = online.do(**order, seconds=self.options.seconds)
        p99 = online_figures(answer, self.service(about["request"]))["p99_us"]
        self.p99_alone.setdefault((about["side"], about["request"], about["load"]), p99)
        self.rows.add(about | {"online": self.figures(answer, about)})

    def offline_alone(self, about):
        work = about["work"]
        offline = self.programs.one(about["side"], "offline", "work", work)
        offline.do(do="offline", work=work, seconds=WARM_SECONDS)
        answer = offline.do(do="offline", work=work, seconds=self.options.seconds)
        per_second = rate(answer["ends"], answer["ends"][0], answer["ends"][-1])
        self.rate_alone[about["side"], work] = per_second
        self.rows.add(about | {"offline": self.offline_figures(answer, about, per_second)})

    def both(self, about):
        seconds, order = self.options.seconds, self.online_order(about["request"], about["load"])
        online, offline = self.programs.pair(about["side"], about["request"], about["work"])
        # Longer than the online program may take when it falls behind; it is stopped after it.
        offline.order(do="offline", work=about["work"], seconds=10 * seconds + 60, stop=True)
        time.sleep(WARM_SECONDS)
        page = self.programs.page_of(about["side"])
        before = page.look() if page else None
        began = time.monotonic()
        told = online.do(**order, seconds=seconds)
        ended = time.monotonic()
        seen = {"page": between(before, page.look())} if page else {}
        offline.order(do="stop")
        answer = offline.answer()
        per_second = rate(answer["ends"], began, ended)
        figures = {"online": self.figures(told, about), "offline": self.offline_figures(answer, about, per_second)}
        self.rows.add(about | {"took_s": ended - began} | figures | seen)

    def verify(self, request, works):
        """Trainings from a fixed state, alone and beside an online program: their parameters must have the same bits."""
        for side in self.sides:
            for work in works:
                about = {"row": "verify", "side": side, "request": request, "work": work, "load": VERIFY_LOAD}
                self.rows.tried(self.programs, about, self.verify_one, about)

    def verify_one(self, about):
        side, work, steps = about["side"], about["work"], self.options.verify
        order = self.online_order(about["request"], about["load"])
        online, offline = self.programs.pair(side, about["request"], work)
        ask = {"do": "verify", "work": work, "steps": steps}
        alone = [offline.do(**ask)["digest"] for _ in range(2)]
        online.order(**order, seconds=600, stop=True)
        time.sleep(WARM_SECONDS / 2)
        # Several times longer than alone where the online program has most of the GPU.
        offline.order(**ask)
        beside = offline.answer(180)["digest"]
        online.order(do="stop")
        told = online.answer()
        offline.do(do="release", work=work)
        self.digests[side, work] = alone[0]
        found = {
            "steps": steps,
            "digest_alone": alone[0],
            "digest_beside": beside,
            "varies_alone": alone[0] != alone[1],
            "as_on_first_side": alone[0] == self.digests[next(one for one in self.sides if (one, work) in self.digests), work],
            "right": alone[0] == beside,
        }
        self.rows.add(about | found | {"online": self.figures(told, about)})
