"""Online and offline programs on one GPU: whatever happens to the offline one, the online one has its answers."""
import os
import signal
import sys
import time

import kit
from ordered import Ordered
from pool import Pool

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench", "gpu", "share_programs", "plain.py")
# SHARING_ROUNDS=100 tests/stories/run ... has every fault a hundred times.
ROUNDS = int(os.environ.get("SHARING_ROUNDS", "3"))


def tell(record):
    with kit.Worker() as worker:
        record.part("an offline program is killed, frozen, loses its session, does wrong and never ends beside an online one", faults, worker)
        record.part("an online program that is killed at work does not hold the offline one", online_is_killed, worker)
        record.part("an offline program goes on between the requests of an online one", both_work, worker)
    with Pool() as pool:
        pool.box("only", "--soft", "1", "--memory", "1GiB")
        kit.until(lambda: f"a GPU: {pool.logs()}", lambda: len(pool.gpus()) == 1, 60)
        pool.all_free()
        record.part("in a pool: an offline program joins the lease of an online one", in_a_lease, pool)


class Program(Ordered):
    """plain.py in a role, with its class."""

    def __init__(self, place, role, given_class, *options):
        words = [sys.executable, PROGRAM, role]
        if isinstance(place, Pool):
            command = [kit.dxpu, "run", "--class", given_class, *options, "--", *words]
            environment = place.environment | {"DXPU_CREDENTIAL": place.borrower}
        else:
            command, environment = place.command(words, options=("--class", given_class, *options)), place.environment
        super().__init__(command, environment)

    def __enter__(self):
        kit.hold("ready" in self.first, "it does not get ready:", self.first, self.first or self.last_words())
        return self

    def answer(self):
        answer = super().answer()
        kit.hold("error" not in answer and answer["right"], "it has an error:", str(answer)[:300])
        return answer


def faults(worker):
    with Program(worker, "online", "online") as online:
        began = time.monotonic()
        online.order(do="online", gap_us=10_000, seconds=600, stop=True)
        for _ in range(ROUNDS):
            with Program(worker, "busy", "offline") as busy:
                time.sleep(0.1)
                busy.process.send_signal(signal.SIGKILL)
                busy.process.wait(10)
            with Program(worker, "busy", "offline") as busy:
                time.sleep(0.1)
                os.kill(worker.session_of(busy.process.pid), signal.SIGKILL)
                kit.until("the program hears of it", lambda: busy.process.poll() is not None)
                kit.hold(busy.process.returncode != 0, "it lost its session and ended well")
            with Program(worker, "busy", "offline") as busy:
                frozen = (busy.process.pid, worker.session_of(busy.process.pid))
                for pid in frozen:
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.1)
                    os.kill(pid, signal.SIGCONT)
            with Program(worker, "greedy", "offline") as greedy:
                _, text = greedy.process.communicate("\n", timeout=60)
                kit.hold("error 2" in text, "it took all memory, and heard:", text[-300:])
            with Program(worker, "illegal", "offline") as wrong:
                _, text = wrong.process.communicate("\n", timeout=20)
                kit.hold("error 700" in text, "it wrote where no memory is, and heard:", text[-300:])
            with Program(worker, "endless", "offline") as endless:
                endless.order()
                time.sleep(0.2)
                session = worker.session_of(endless.process.pid)
                endless.process.send_signal(signal.SIGKILL)
                kit.until("its session ends", lambda: not kit.alive(session))
        online.order(do="stop")
        answer = online.answer()
        spent = time.monotonic() - began
        kit.hold(len(answer["arrivals"]) > 10 * spent, "few requests:", len(answer["arrivals"]), "in", spent)
        kit.hold(answer["arrivals"][-1] > began + spent - 5, "the online program stood still at the end")


def online_is_killed(worker):
    for _ in range(ROUNDS):
        with Program(worker, "offline", "offline") as offline, Program(worker, "busy", "online") as busy:
            os.kill(worker.session_of(busy.process.pid), signal.SIGSTOP)
            busy.process.send_signal(signal.SIGKILL)
            offline.order(do="offline", work="product", seconds=1)
            # A frozen session keeps the gate closed for a second at most.
            offline.answer()
            os.kill(worker.session_of(busy.process.pid), signal.SIGKILL)


def both_work(worker):
    with Program(worker, "online", "online") as online, Program(worker, "offline", "offline") as offline:
        offline.order(do="offline", work="product", seconds=3)
        online.order(do="online", gap_us=20_000, seconds=3)
        served, steps = online.answer(), offline.answer()
        kit.hold(len(served["arrivals"]) > 50, "few requests:", len(served["arrivals"]))
        kit.hold(len(steps["ends"]) > 5, "few steps:", len(steps["ends"]))


def in_a_lease(pool):
    with Program(pool, "online", "online", "--gpus", "1") as online:
        (lease,) = pool.live_leases()
        with Program(pool, "offline", "offline", "--lease", lease["id"]) as offline:
            offline.order(do="offline", work="product", seconds=2)
            online.order(do="online", gap_us=20_000, seconds=2)
            kit.hold(online.answer()["arrivals"] and len(offline.answer()["ends"]) > 2, "one of them did nothing")
        kit.until(lambda: f"the worker tells of a session that shared: {pool.logs()}", lambda: told_of_sharing(pool))
        online.process.stdin.close()
        online.process.wait(20)
    pool.all_free()


def told_of_sharing(pool):
    folder = pool.file("only/slot-0")
    logs = [pool.read(f"only/slot-0/{name}") for name in os.listdir(folder) if name.endswith("log")]
    return any("class=offline" in log for log in logs)
