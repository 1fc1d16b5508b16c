"""When which workload is asked for, and what became of each request."""

import concurrent.futures
import random
import time


def poisson(names, of_each, gap_s, seed):
    """Requests in random order, with exponential gaps: (second, workload)."""
    dice = random.Random(seed)
    order = [name for name in names for _ in range(of_each)]
    dice.shuffle(order)
    at, plan = 0.0, []
    for name in order:
        at += dice.expovariate(1 / gap_s)
        plan.append((at, name))
    return plan


def bursts(names, count, every_s):
    """All workloads at once, again and again."""
    return [(number * every_s, name) for number in range(count) for name in names]


def play(plan, invoke, until):
    """Sends each request at its time, whatever became of those before it. `invoke(name)` returns the workload's answer.
    Requests whose time is after `until` are left out."""
    began = time.time()
    records = []

    def one(at, name):
        sent = began + at
        record = {"workload": name, "at_s": at}
        try:
            answer = invoke(name)
            answered = time.time()
            record |= {
                "end_to_end_s": answered - sent,
                # Until a process that serves it has begun, or, where one was warm, until it took the request.
                "queue_s": max(0.0, (answer["started"] if answer["served_by_this_instance"] == 1 else answer["entered"]) - sent),
                "load_s": answer["load_s"] if answer["served_by_this_instance"] == 1 else 0.0,
                "compute_s": answer["compute_s"],
                "is_cold": answer["served_by_this_instance"] == 1,
                "result": answer["result"],
                "began_s": answer["entered"] - began,
                "ended_s": answered - began,
            }
        except Exception as error:
            record["error"] = str(error)[:500]
        return record

    with concurrent.futures.ThreadPoolExecutor(max(1, len(plan))) as threads:
        waiting = []
        for at, name in plan:
            if began + at > until:
                break
            time.sleep(max(0.0, began + at - time.time()))
            waiting.append(threads.submit(one, at, name))
        records = [future.result() for future in waiting]
    return {"planned": len(plan), "wall_s": time.time() - began, "requests": records}
