"""The sharing benchmark itself, without a GPU: its figures, tables and plot.   pytest tests/gpu/test_share.py"""

import ctypes
import json
import pathlib
import subprocess
import sys
import time
import xml.etree.ElementTree as xml
from argparse import ArgumentParser, Namespace

import pytest

BENCH = pathlib.Path(__file__).parent.parent.parent / "bench" / "gpu"
sys.path[:0] = [str(BENCH / "lib"), str(BENCH / "share_programs"), str(BENCH)]

import gpu_activity  # noqa: E402
import serve  # noqa: E402
import share  # noqa: E402
import share_day  # noqa: E402
import share_figures  # noqa: E402
import share_join  # noqa: E402
import share_page  # noqa: E402
import share_plot  # noqa: E402
import share_rows  # noqa: E402
import share_sides  # noqa: E402
import share_tables  # noqa: E402


def answer(latencies_us, arrived=None, right=True):
    arrivals = [float(at) for at in range(len(latencies_us))]
    count = len(latencies_us) if arrived is None else arrived
    return {"arrivals": arrivals, "latencies_us": latencies_us, "arrived": count, "right": right}


def test_percentiles_of_many_few_and_no_values():
    assert share_figures.percentile(range(1000), 0.99) == 990
    assert share_figures.percentile([7.0], 0.999) == 7.0
    assert share_figures.percentile([], 0.5) is None


@pytest.mark.parametrize(
    ("completed", "arrived", "p99_us", "expected"),
    [(100, 100, 5000, False), (99, 100, 5000, True), (100, 100, 20_001, True), (0, 0, None, False)],
)
def test_a_program_falls_behind_when_requests_are_left_or_wait_for_long(completed, arrived, p99_us, expected):
    assert share_figures.falls_behind(completed, arrived, p99_us, service_us=1000) is expected


def test_figures_of_an_online_program():
    figures = share_figures.online_figures(answer([1000.0] * 99 + [9000.0], right=False), 900)
    assert (figures["p50_us"], figures["p99_us"], figures["longest_us"]) == (1000, 9000, 9000)
    assert (figures["requests"], figures["right"], figures["falls_behind"]) == (100, False, False)
    assert share_figures.online_figures(answer([]), 900)["p99_us"] is None


def test_a_rate_counts_steps_within_the_span():
    assert share_figures.rate([0, 1, 2, 3, 4, 5], 0.5, 4.5) == 1.0
    assert share_figures.rate([0, 1, 2], 5, 6) == 0.0


def test_the_rate_of_a_program_that_stands_still_is_not_that_of_its_last_steps():
    assert share_figures.rate([0.0, 0.01, 0.02, 10.0], 0.0, 2.0) == pytest.approx((2 + 1.98 / 9.98) / 2)


def test_a_silence_lies_between_two_answers_whatever_was_waiting():
    told = {"arrivals": [0.0, 1.0, 1.1, 1.2, 4.0], "latencies_us": [1e5, 2e6, 1.9e6 + 1000, 1.8e6 + 2000, 1e5]}
    assert share_figures.silence_around(told, 1.05, 1.5) == pytest.approx(2.9e6)
    assert share_figures.silence_around(told, 3.0005, 3.002) == pytest.approx(1000)
    assert share_figures.silence_around(told, 5, 6) is None


def test_a_request_that_was_under_way_belongs_to_the_fault():
    # The second one arrives at 1 and ends at 3.5.
    assert share_figures.longest_around(answer([1000.0, 2.5e6, 1000.0]), 2.0, 2.5) == 2.5e6
    assert share_figures.longest_around(answer([1000.0]), 2.0, 2.5) is None


def test_a_day_has_two_humps_between_its_bounds():
    loads = [share_figures.day_load(hour) for hour in range(24)]
    assert 0.1 <= min(loads) < 0.12 and 0.79 < max(loads) <= 0.8
    humps = [hour for hour in range(24) if loads[hour] > loads[hour - 1] and loads[hour] > loads[(hour + 1) % 24]]
    assert humps == [11, 20]


def test_each_fault_of_a_day_has_an_hour():
    kinds = ["a", "b", "c", "d", "e", "f"]
    hours = share_day.fault_hours(kinds)
    assert list(hours.values()) == kinds and all(0 <= hour < 24 for hour in hours)


def test_a_slow_program_leaves_arrivals_behind():
    server = serve.Server(requests={"slow": lambda: serve.Request(lambda: time.sleep(0.05))})
    told = server.online({"request": "slow", "gap_us": 5000, "seconds": 0.2})
    assert len(told["latencies_us"]) < told["arrived"]
    assert share_figures.online_figures(told, 50_000)["falls_behind"]


def test_all_arrivals_of_a_fast_program_are_served():
    server = serve.Server(requests={"fast": lambda: serve.Request(lambda: None)})
    told = server.online({"gap_us": 5000, "seconds": 0.2})
    assert len(told["latencies_us"]) == told["arrived"] > 10


def both(side, load, p99_of_alone, of_alone, **online):
    figures = share_figures.online_figures(answer([1000.0] * 10), 900) | {"p99_of_alone": p99_of_alone} | online
    about = {"row": "both", "side": side, "request": "graph", "work": "train", "load": load}
    return about | {"online": figures, "offline": {"per_second": 20.0, "of_alone": of_alone, "right": None}}


def every_kind_of_row():
    online = share_figures.online_figures(answer([1000.0] * 10), 900) | {"p99_of_alone": None}
    window = {name: None for name in gpu_activity.NAMES} | {"hour": 3, "load": 0.1, "online": online}
    whole = {name: 50.0 for name in gpu_activity.NAMES} | {"requests": 10, "right": True, "p50_us": 1.0, "p99_us": 2.0}
    whole |= {"worst_p99_us": None, "offline_per_second": None, "offline_of_alone": None}
    fault = {"kind": "illegal", "said": "error 700", "longest_us": 150_000.0}
    return [
        {"row": "online alone", "side": "slices", "request": "graph", "load": 0.5, "online": online},
        {"row": "offline alone", "side": "slices", "work": "train",
         "offline": {"per_second": 40.0, "of_alone": 1.0, "right": None}},
        both("gate", 0.5, 1.1, 0.44)
        | {"page": {"busy": 0.58, "periods": 270.4, "groups": 5000.0, "group_us": None, "cost": 0.12}},
        both("slices", 0.5, 5000.0, 0.7, falls_behind=True, right=False),
        {"row": "verify", "side": "gate", "request": "graph", "work": "train", "load": 0.5, "steps": 20, "varies_alone": False,
         "as_on_first_side": True, "right": False, "online": online},
        {"row": "faults", "side": "gate", "request": "graph", "kind": "illegal", "load": 0.5, "count": 3, "longest_us": 151_000.0,
         "median_longest_us": 150_000.0, "silence_us": 140_000.0, "p99_around_us": 9000.0, "said": [["error 700", 3]], "online_errors": [],
         "online": online},
        {"row": "faults", "side": "gate", "request": "graph", "kind": "long", "load": 0.5, "count": 1, "said": [],
         "online_errors": ["it ended"]},
        {"row": "pauses", "side": "gate", "request": "graph", "work": "train", "load": 0.5, "count": 5, "first_10_ms": 0.66,
         "later": 0.98, "offline_right": None, "online": online},
        {"row": "day", "side": "gate", "request": "graph", "work": "train", "seconds": 600, "why_no_activity": "no library",
         "windows": [window | {"is_shared": False}, window | {"is_shared": True, "fault": fault}],
         "whole": {"without": whole, "with": whole}},
        {"row": "both", "side": "mps", "request": "graph", "work": "bert", "load": 0.5, "error": "RuntimeError: it broke"},
    ]  # fmt: skip


def results(rows):
    about = {"gpu": "a GPU", "date": "today", "commit": "c", "cpu": "a CPU", "cores": 1}
    options = {"seconds": 4, "sides": ["slices", "gate", "mps"]}
    return {"about": about, "options": options, "service_us": {"graph": 900.0}, "rows": rows, "left_out": [{"row": "both"}]}


def test_the_page_shows_what_is_wrong():
    page = share_tables.page(results(every_kind_of_row()))
    assert "| train | gate | 1.00 | 1.00 | 1.00 | 1.00 | 10 of 10 | 1.10 | 20.00 | 0.44 | yes |  |" in page
    assert "5000.00 (falls behind)" in page and "**NO**" in page
    assert "- both mps graph bert 0.5: RuntimeError: it broke" in page and "1 rows were left out" in page
    assert "| illegal | gate | 3 | 0 | 151 | 150 | 140 | 9.00 |" in page and "Online error after long: it ended" in page
    assert "| `graph` | train | gate | 5 | 0.66 | 0.98 |" in page
    assert "illegal, 150 ms" in page and "no library" in page
    assert "| `graph` | 0.5 | train | gate | 0.58 | 270 | 5000 | - | 0.12 | 0.44 |" in page


def test_steps_count_in_part_where_they_lie_in_a_pause_in_part():
    ends = [0.0, 1.0, 2.0, 4.0]
    assert share_figures.steps_between(ends, 0.5, 3.0) == pytest.approx(0.5 + 1 + 0.5)
    assert share_figures.steps_between(ends, 5, 6) == 0 and share_figures.steps_between([1.0], 0, 2) == 0


def test_pauses_lie_between_the_end_of_a_request_and_the_next_arrival():
    assert share_figures.pauses([0.0, 1.0, 1.2, 3.0], [100_000.0, 300_000.0, 100_000.0, 1.0], 0.5) == [(0.1, 1.0), (1.3, 3.0)]


def test_arrivals_in_bursts_leave_every_other_span_empty():
    arrivals = serve.Arrivals({"gap_us": 10_000, "burst_seconds": 0.4}, 100.0)
    found = [arrivals.next() - 100.0 for _ in range(2000)]
    assert found == sorted(found) and all((at + 1e-6) % 0.8 < 0.4 + 2e-6 for at in found)
    steady = serve.Arrivals({"gap_us": 10_000}, 100.0)
    assert [steady.next() for _ in range(2000)][-1] == pytest.approx(120, rel=0.02)


def test_runs_of_one_commit_are_joined_and_others_refused(tmp_path):
    first, second = results([both("gate", 0.5, 1.1, 0.44)]), results([both("gate", 0.2, 1.2, 0.7)])
    for name, run in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "share.json").write_text(json.dumps(run))
    folders = [str(tmp_path / name) for name in ("a", "b", "joined")]
    command = [sys.executable, str(BENCH / "share.py"), "--join", *folders[:2], "--out", folders[2]]
    told = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    assert told.startswith("2 rows of 2 runs")
    page = (tmp_path / "joined" / "share.md").read_text()
    assert "## Online `graph`, load 0.2" in page and "## Online `graph`, load 0.5" in page and "Joined from 2 runs" in page
    second["about"]["commit"] = "d"
    with pytest.raises(share_join.CannotJoin, match="commit c, another of d"):
        share_join.join([first, second])


def test_a_page_tells_what_happened_between_two_looks():
    page = share_page.Page()
    try:
        before = page.look()
        assert (before["busy_ns"], before["periods"], before["groups"], before["group_us"]) == (0, 0, 0, None)
        words = {share_page.PRESENT: 0b01, share_page.GUESTS: 0b10}
        online, guest = share_page.HEADER, share_page.HEADER + share_page.SLOT
        words |= {online + share_page.BUSY_TOTAL_NS: 10**9, online + share_page.BUSY_PERIODS: 300, online + share_page.COST_MILLI: 120}
        words |= {online + share_page.GROUP_US: 25, online + share_page.GROUPS: 99, guest + share_page.GROUPS: 4000}
        with open(page.path, "r+b") as file:
            for word, value in words.items():
                file.seek(8 * word)
                file.write(value.to_bytes(8, "little"))
        seen = share_page.between(before, page.look() | {"at_ns": before["at_ns"] + 2 * 10**9})
        assert seen == {"busy": 0.5, "periods": 150, "groups": 2000, "group_us": 25, "cost": 0.12}
    finally:
        page.remove()


def test_rows_of_a_table_have_the_cells_of_its_head():
    lines = share_tables.page(results(every_kind_of_row())).splitlines()
    for before, here in zip(lines, lines[1:]):
        if before.startswith("|") and here.startswith("|"):
            assert before.count("|") == here.count("|"), (before, here)


@pytest.mark.parametrize("row", every_kind_of_row(), ids=lambda row: f"{row['row']}-{row.get('side')}")
def test_each_row_has_a_line(row):
    assert row["row"] in share_tables.line(row)


def test_the_plot_has_a_marker_for_each_pair_and_is_well_formed():
    rows = [both(side, load, 1.5, 0.4) for side in share_sides.SIDES for load in (0.2, 0.5)] + every_kind_of_row()
    picture = xml.fromstring(share_plot.svg(rows))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title") if title.text]
    assert len(titles) == 2 * len(share_sides.SIDES) + 2
    assert any("falls behind" in title for title in titles)
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"online load 0.2", "online load 0.5", "gate", "mps30", "online p99, times alone"} <= set(texts)
    assert xml.fromstring(share_plot.svg([])) is not None


def test_points_stay_inside_the_plot():
    for offline, p99 in ((0, 0.01), (3, 1e9)):
        x, y = share_plot.place(offline, p99)
        assert 0 < x < share_plot.WIDTH and 0 < y < share_plot.HEIGHT
    assert share_plot.place(0.5, 10)[1] < share_plot.place(0.5, 2)[1], "a longer wait is higher up"


def given(**options):
    names = ("onlines", "works", "loads", "sides", "verify", "day", "pauses")
    found = Namespace(**dict.fromkeys(names), matrix=False, faults=0, driver="nvidia", fault_kinds="illegal", sides_once="")
    for name, value in options.items():
        setattr(found, name, value)
    share.complete(found, ArgumentParser())
    return found


def test_what_is_measured():
    assert given().has_pairs and not given(pauses=3).has_pairs and not given(faults=3).has_pairs and given(faults=3, matrix=True).has_pairs
    everything = given(matrix=True)
    assert (len(everything.onlines), len(everything.works), everything.loads) == (3, 4, [0.5, 0.2, 0.8])
    assert everything.verify and everything.sides == ["slices", "gate", "mps", "mps30"]
    assert given(matrix=True, works="bert", driver="soft").works == ["bert"]
    with pytest.raises(SystemExit):
        given(sides="gate,best")
    assert given(sides="isolated", sides_once="slices,mps").sides_once == ["slices", "mps"]
    with pytest.raises(SystemExit):
        given(sides_once="best")


class Dropped(list):
    drop = list.append


def test_a_row_that_fails_is_told_and_its_side_starts_again(capsys):
    rows, dropped = share_rows.Rows(Namespace(out=None, budget=None), {}), Dropped()

    def breaks():
        raise RuntimeError("no")

    assert not rows.tried(dropped, {"row": "both", "side": "mps"}, breaks)
    assert rows.results["rows"][0]["error"] == "RuntimeError: no" and dropped == ["mps"]
    assert "FAILED" in capsys.readouterr().out


def test_no_row_begins_after_the_budget():
    rows = share_rows.Rows(Namespace(out=None, budget=1e-9), {})
    time.sleep(0.001)
    assert not rows.tried(None, {"row": "both"}, pytest.fail, "it began")
    assert rows.results["left_out"] == [{"row": "both"}]


def test_questions_to_nvml_have_their_layout():
    assert ctypes.sizeof(gpu_activity.GpmMetric) == 40
    assert gpu_activity.GpmQuestion.metrics.offset == 24


def test_without_nvml_nothing_is_known(monkeypatch):
    monkeypatch.setattr(gpu_activity.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(f"{name} is not here")))
    activity = gpu_activity.Activity()
    assert set(activity.end(activity.begin()).values()) == {None}
    assert "is not here" in activity.why_not
    activity.stop()
