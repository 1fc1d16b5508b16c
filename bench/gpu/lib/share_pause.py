"""What an offline program has in the pauses of an online one: its rate from 10 ms after the last request of a burst to the first of the
next one, as a share of its rate alone and dedicated.
"""

import time

from share_figures import pauses, ratio, steps_between
from share_sides import SIDES

BURST_SECONDS = 0.4
# Shorter pauses are between requests of one burst.
PAUSE_SECONDS = BURST_SECONDS / 2
BEGINS_AFTER_SECONDS = 0.010
# The offline program's first steps are not measured.
WARM_SECONDS = 0.5


class Pauses:
    def __init__(self, options, programs, rows, matrix):
        self.options, self.programs, self.rows, self.matrix = options, programs, rows, matrix

    def measure(self, request, works, load):
        for work in works:
            self.matrix.works_alone(work)
            for side in (side for side in self.options.sides if SIDES[side].classes):
                about = {"row": "pauses", "side": side, "request": request, "work": work, "load": load}
                self.rows.tried(self.programs, about, self.one, about)

    def one(self, about):
        order = self.matrix.online_order(about["request"], about["load"]) | {"burst_seconds": BURST_SECONDS}
        online, offline = self.programs.pair(about["side"], about["request"], about["work"])
        seconds = self.options.pauses
        offline.order(do="offline", work=about["work"], seconds=10 * seconds + 60, stop=True)
        time.sleep(WARM_SECONDS)
        told = online.do(**order, seconds=seconds)
        offline.order(do="stop")
        answer = offline.answer()
        spans = pauses(told["arrivals"], told["latencies_us"], PAUSE_SECONDS)
        found = {"count": len(spans), "offline_right": answer["right"]}
        for name, begins, ends in (("first_10_ms", 0, BEGINS_AFTER_SECONDS), ("later", BEGINS_AFTER_SECONDS, float("inf"))):
            parts = [(since + begins, min(until, since + ends)) for since, until in spans]
            steps = sum(steps_between(answer["ends"], *part) for part in parts)
            per_second = ratio(steps, sum(until - since for since, until in parts))
            found[name] = self.matrix.offline_figures(answer, about, per_second)["of_alone"]
        self.rows.add(about | found | {"online": self.matrix.figures(told, about)})
