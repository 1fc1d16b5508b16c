"""The harness itself, without a GPU: a comparison that cannot fail would prove nothing.   pytest tests/gpu/test_harness.py"""

import os
import pathlib
import sys
from argparse import Namespace
from concurrent.futures import Future

import pytest

HERE = pathlib.Path(__file__).parent
BENCH = HERE.parent.parent / "bench" / "gpu"
sys.path[:0] = [str(HERE / "lib"), str(BENCH / "lib"), str(BENCH)]

import compare  # noqa: E402
import distance_measurement  # noqa: E402
import distance_prediction  # noqa: E402
import distance_report  # noqa: E402
import figures  # noqa: E402
import measurement  # noqa: E402
import modes as known_modes  # noqa: E402
import rounds  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402
import witness  # noqa: E402
from bed import Result  # noqa: E402
from catalogue import CHECKS, Check  # noqa: E402
from judge import Verdict, judge  # noqa: E402
from verdicts import Report  # noqa: E402
from workloads import STEPS, WORKLOADS  # noqa: E402


def verdict(native, remote, again=None, **check):
    """The verdict over two runs that said this; `again` is what a second native run says."""

    class Bed:
        reference = "native"

        def python(self, path):
            return [path]

        def run(self, *_):
            assert again is not None, "nobody should ask again"
            return result(again)

    def result(said):
        return said if isinstance(said, Result) else Result(0, said, "", 1.0, False, None)

    def done(said):
        future = Future()
        future.set_result(result(said))
        return future

    return judge(Bed(), Check("some", **check), {"native": done(native), "tcp": done(remote)})


def test_the_same_facts_pass():
    assert verdict("= a 1\n~ b 0.1 2.0\nnoise", "noise\n= a 1\n~ b 0.1 2.1\n. c 5").status == "ok"


@pytest.mark.parametrize(
    "remote",
    [
        "= a 2\n~ b 0.1 2.0",
        "= a 1\n~ b 0.1 2.5",
        "= a 1",
        "= a 1\n~ b 0.1 2.0\n= c 3",
        "= a 1\n! b RuntimeError: no",
        "= a 1\n= a 1",
    ],
)
def test_any_difference_fails(remote):
    native = "= a 1\n~ b 0.1 2.0"
    assert verdict(native, remote, again=native).status == "failed"


def test_what_varies_natively_is_not_held_against_us():
    found = verdict("= a 1\n= b 1", "= a 2\n= b 1", again="= a 3\n= b 1")
    assert found.status == "ok" and "varies natively" in found.lines[0]


def test_an_error_on_both_sides_is_no_success():
    assert verdict("! a RuntimeError: x", "! a RuntimeError: x").status == "failed"


def test_silence_is_no_success():
    assert verdict("", "").status == "failed"


@pytest.mark.parametrize("broken", [(1, False, None), (0, True, None), (0, False, "the client has NVIDIA's driver mapped")])
def test_a_process_that_is_not_right_fails_whatever_it_said(broken):
    code, is_late, complaint = broken
    assert verdict("= a 1", Result(code, "= a 1", "", 1.0, is_late, complaint)).status == "failed"


def test_a_bad_end_must_be_the_native_end():
    bad = Result(134, "= a 1", "", 1.0, False, None)
    assert verdict(bad, bad, may_end_badly=True).status == "ok"
    assert verdict(bad, "= a 1", may_end_badly=True).status == "failed"
    assert verdict(bad, bad).status == "failed"


def test_known_differences_need_a_reason_and_match_by_pattern():
    known = compare.expected("pools")
    assert compare.reason_for("plain-memory-too", known)
    patterns = {"*ipc*": "for this test"}
    assert compare.reason_for("ipc", patterns) and compare.reason_for("ipc-event", patterns)
    assert compare.reason_for("sum", known) is None and compare.expected("torch_eager") == {}


def test_every_check_has_its_file():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    missing = [check.path for check in CHECKS if not (HERE / check.path).exists()]
    assert not missing


def test_this_process_has_no_driver():
    assert witness.complaint("remote", "/nowhere", must_have_cuda=False) is None
    assert "never loaded" in witness.complaint("remote", "/nowhere")
    assert "does not use the driver" in witness.complaint("native", "/nowhere")


def test_a_foreign_library_is_noticed(tmp_path):
    """A mapped file of the driver's name is found, and counts as ours only below our folder."""
    import mmap

    library = tmp_path / "cache" / "libcuda.so.1"
    library.parent.mkdir()
    library.write_bytes(b"x" * mmap.PAGESIZE)
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        assert witness.complaint("remote", str(tmp_path / "cache")) is None
        assert "mapped" in witness.complaint("remote", str(tmp_path / "other"))
        assert "dxpu's" in witness.complaint("native", str(tmp_path / "cache"))
    assert os.path.exists(library)


def measured(**times):
    """Results in which every step takes so many milliseconds by mode."""
    rows = {
        name: {
            "title": WORKLOADS[name].title,
            "bytes_moved": WORKLOADS[name].bytes_moved,
            "modes": {mode: {"repetitions": [{"median_ms": time * n} for n in (1, 1, 9)]} for mode, time in times.items()},
        }
        for name in [*STEPS, "item", "h2d_pinned"]
    }
    machine = {"gpu": "a GPU", "date": "today", "commit": "c", "cpu": "a CPU", "cores": 1}
    return {"machine": machine, "command": "", "modes": list(times), "base": "native", "repetitions": 3, "workloads": rows}


def test_a_ratio_is_native_time_by_remote_time_and_outliers_do_not_count():
    results = measured(native=2.0, tcp=4.0)
    assert summary.ratio(results, "gpt2", "tcp") == 0.5
    assert summary.geometric_means(results)["tcp"] == {"ratio": pytest.approx(0.5), "of": len(STEPS)}


def test_targets_are_judged_both_ways():
    verdicts = {target.title: target.verdict for target in summary.targets(measured(native=2.0, tcp=1.6, shm=1.7))}
    assert verdicts["steps over TCP, geometric mean"] == "pass"
    assert verdicts["steps over shared memory, geometric mean"] == "miss"
    assert verdicts["shared memory against TCP on the steps, the worst of times"] == "miss"
    assert verdicts["`.item()` over TCP, times native"] == "pass"


def test_a_mean_of_some_workloads_is_no_mean():
    results = measured(native=2.0, tcp=1.0)
    del results["workloads"]["gpt2"]
    assert "steps over TCP, geometric mean" not in {target.title for target in summary.targets(results)}


def test_pinned_copies_are_held_against_bare_streams():
    results = measured(native=2.0, tcp=100.0)
    results["bare"] = [{"tcp": {"gbps": 2.0, "rtt_us": 10}}]
    rate = WORKLOADS["h2d_pinned"].bytes_moved / 0.1 / 1e9
    assert summary.of_bare(results, "h2d_pinned", "tcp") == pytest.approx(rate / 2.0)


def test_the_way_to_a_driver_that_does_nothing():
    results = measured(native=4.0, tcp=3.0, shm=5.0, limit=2.0)
    assert summary.way_to_limit(results, "gpt2", "tcp") == pytest.approx(0.5)
    assert summary.way_to_limit(results, "gpt2", "shm") == pytest.approx(-0.5)
    assert "| GPT-2, 64 tokens greedy | 4.000 | 2.000 | - | 0.50 | -0.50 |" in tables.markdown(summary.complete(results))
    # The GPU's own work is a bound, too, where it is more; neither is a way to run a program.
    results = measured(native=4.0, tcp=3.4, limit=2.0, gpu=3.0)
    assert summary.way_to_limit(results, "gpt2", "tcp") == pytest.approx(0.6)
    assert summary.fastest_mean(results)["ratio"] == pytest.approx(4 / 3)
    assert list(summary.geometric_means(results)) == ["tcp"]
    # Where the GPU sets the pace, nothing can be saved, and a share of nothing would be noise.
    assert summary.way_to_limit(measured(native=4.0, tcp=3.9, limit=3.9), "gpt2", "tcp") is None
    assert "limit" not in tables.markdown(summary.complete(measured(native=4.0, tcp=3.0)))


def test_the_limit_runs_on_the_machine_s_own_driver_and_not_for_copies():
    native, limit, gpu = known_modes.parse(["native", "limit", "gpu"], [], "/bin/dxpu")
    assert limit.command(None, "python", "x")[:2] == ["/bin/dxpu", "inject"] and not limit.scheme
    with pytest.raises(ValueError, match="no such mode"):
        known_modes.parse(["limit"], [])
    assert gpu.command(None, "python", "x") == ["python", "x"]
    options = Namespace(modes=[native, limit, gpu], device="cpu", tiny=True)
    one = measurement.Measurement(options, {}, Namespace(libraries="/nowhere"), None, "/nowhere", lambda: None)
    assert one.modes_of(WORKLOADS["gpt2"]) == ["native", "limit", "gpu"]
    assert one.modes_of(WORKLOADS["h2d_pinned"]) == ["native"]


def test_a_failed_mode_is_shown_as_such():
    results = measured(native=2.0, tcp=1.0)
    results["workloads"]["gpt2"]["modes"]["tcp"] = {"repetitions": [], "error": "it broke"}
    page = tables.markdown(summary.complete(results))
    assert "| GPT-2, 64 tokens greedy | 2.000 | error |" in page and "- gpt2, tcp: it broke" in page


def test_many_samples_are_kept_as_percentiles():
    kept = figures.percentiles(range(10001))
    assert (len(kept), kept[0], kept[50], kept[-1]) == (101, 0, 5000, 10000)


# What programs keep at a distance: bench/gpu/distance.


def injected(fillers, asked_us, added_us, launch_us, call_us):
    return {
        "fillers": fillers,
        "asked_us": fillers * asked_us,
        "added_us": fillers * added_us,
        "launches": fillers,
        "launch_us": fillers * launch_us,
        "calls": 100,
        "call_us": 100 * call_us,
    }


def test_each_round_trip_stands_beside_nothing():
    assert rounds.with_nothing_between([2, 5, 8]) == [0, 2, 5, 0, 8, 0]
    assert rounds.with_nothing_between([]) == [0]


def test_what_is_compared_was_measured_side_by_side():
    # The machine gets slower by the half within a round: a ratio with what stands beside does not notice.
    one = [["inject nothing", 20, None], ["inject 8us", 25, None], ["inject nothing", 20, None]]
    slow = [[key, 1.5 * ms, more] for key, ms, more in one]
    drifting = one + [["inject 50us", 60, None]] + slow
    assert rounds.ratios([drifting], "inject 8us", "inject nothing") == [0.8, 0.8]
    assert rounds.ratio([one, one, [["inject nothing", 20, None], ["inject 8us", 90, None]]], "inject 8us", "inject nothing") == 0.8
    assert rounds.ratio([one], "tcp", "native") is None


def test_how_far_apart_the_middle_half_is():
    cycles = [[["inject nothing", 20, None], ["inject 8us", ms, None]] for ms in (20, 24, 25, 25, 26, 100)]
    assert rounds.middle_half_points(cycles, "inject 8us", "inject nothing") == pytest.approx(100 * (20 / 24 - 20 / 26))
    assert rounds.middle_half_points([], "inject 8us", "inject nothing") is None


def test_recordings_are_chosen_from_the_whole_run():
    assert distance_prediction.spread(list(range(30)), 3) == [0, 14, 29]
    assert distance_prediction.spread([1, 2], 7) == [1, 2]


def test_fillers_are_counted_with_what_they_do_to_the_programs_own_launches():
    found = [[["inject nothing", 20, injected(0, 0, 0, 0, 5.0)], ["inject 2us", 25, injected(100, 0.8, 1.6, 4.0, 6.5)]]]
    added = rounds.added(found, "inject 2us")
    assert (added["asked_us"], added["added_us"]) == pytest.approx((0.8, 1.6))
    assert added["launch_us"] == pytest.approx(4.0 + 1.5)
    assert rounds.added(found, "inject nothing") is None


def test_the_api_plane_is_compared_with_itself_without_delay():
    found = [["native", 30, None], ["trace", 30.6, None], ["native", 30, None], ["tcp", 20, None], ["tcp+50us", 25, None]]
    row = {"title": "some", "rounds": [found], "ms": rounds.medians([found]), "predicted_api": {"none": 110.0, "50us": 99.0}}
    results = {"rtts_us": [2.0], "workloads": {"some": row}}
    distance_report.compare(results, row)
    assert row["api_delayed"] == {"50us": pytest.approx(80.0)}
    assert row["api"]["none"] == pytest.approx(150.0)
    assert row["predicted_api_delayed"] == {"50us": pytest.approx(90.0)}
    assert row["api_delayed_points"] == {"50us": pytest.approx(10.0)}
    assert row["trace_overhead_pct"] == pytest.approx(2.0)


class Machine:
    """A clock, and processes whose every answer takes a while of it."""

    def __init__(self, seconds):
        self.now, self.seconds = 0.0, seconds

    def monotonic(self):
        return self.now

    def ask(self, _limit, **request):
        if request["do"] == "cycle":
            self.now += max(request["seconds"], 1.0)
            return {"cycles": [[[key, 20.0, None] for key, _, _ in request["plan"]]]}
        self.now += self.seconds if request["do"] == "measure" else 0.5
        return {"probe": [1.0], "median_ms": 20.0, "sum_ms": 20.0, "count": 1}


def run_of_distances(monkeypatch, seconds, budget):
    machine = Machine(seconds)
    monkeypatch.setattr(distance_measurement, "time", machine)
    options = Namespace(
        dxpu="dxpu", device="cuda", tiny=False, only=["resnet_train_32", "bert_train", "ssd_train"], reps=6, seconds=0.25,
        budget=budget, delays=["none", "50us"], rtts=[2, 5, 8, 12, 19, 30, 50],
    )  # fmt: skip
    results = {"workloads": {}, "errors": []}
    one = distance_measurement.DistanceMeasurement(options, results, None, True, "/nowhere", lambda: None)
    for runner in one.runners.values():
        runner.mode = Namespace(starts=["/nowhere"])
        runner.start, runner.end, runner.ask = (lambda: None), (lambda: None), machine.ask
        runner.await_hello = lambda runner=runner: setattr(runner, "hello", {})
    one.find_profiles = lambda: None
    one.run()
    return machine.now, results


def test_a_budget_is_kept_and_shared(monkeypatch):
    took, results = run_of_distances(monkeypatch, 0.35, 110)
    assert took <= 100, "time is left to end processes and write profiles"
    assert results["errors"] == []
    assert all(len(row["rounds"]) >= 3 for row in results["workloads"].values())
    # Every condition is in every round or cycle.
    row = results["workloads"]["ssd_train"]
    assert {key for key, _, _ in row["rounds"][0]} == {"native", "trace", "tcp", "tcp+50us"}
    assert {key for key, _, _ in row["cycles"][0]} >= {"recorded", "inject nothing", "inject 2us", "inject 50us"}


def test_a_slow_machine_measures_fewer_programs_but_these_well(monkeypatch):
    took, results = run_of_distances(monkeypatch, 0.6, 110)
    rows = list(results["workloads"].values())
    assert [len(row["rounds"]) >= 3 for row in rows[:2]] == [True, True]
    assert took <= 112


@pytest.mark.parametrize(
    ("statuses", "ends_with"),
    [
        (["ok"], 0),
        (["ok", "skipped"], 0),
        (["ok", "failed"], 1),
        (["skipped", "skipped"], 1),
        ([], 1),
    ],
)
def test_a_run_that_checked_nothing_fails(tmp_path, statuses, ends_with):
    report = Report(str(tmp_path))
    for number, status in enumerate(statuses):
        report.add(Verdict(f"check{number}", status, 0, []))
    assert report.end() == ends_with
