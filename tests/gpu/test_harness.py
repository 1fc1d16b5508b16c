"""The harness itself, without a GPU: a comparison that cannot fail would prove nothing.   pytest tests/gpu/test_harness.py"""

import os
import pathlib
import sys
from concurrent.futures import Future

import pytest

HERE = pathlib.Path(__file__).parent
BENCH = HERE.parent.parent / "bench" / "gpu"
sys.path[:0] = [str(HERE / "lib"), str(BENCH / "lib"), str(BENCH)]

import compare  # noqa: E402
import figures  # noqa: E402
import summary  # noqa: E402
import tables  # noqa: E402
import witness  # noqa: E402
from bed import Result  # noqa: E402
from catalogue import CHECKS, Check  # noqa: E402
from judge import judge  # noqa: E402
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
    known = compare.expected("cuda_refused")
    assert compare.reason_for("texture-2d", known) and compare.reason_for("managed", known)
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
    verdicts = {target.title: target.verdict for target in summary.targets(measured(native=2.0, tcp=1.9, shm=1.8))}
    assert verdicts["steps over TCP, geometric mean"] == "pass"
    assert verdicts["steps over shared memory, geometric mean"] == "miss"
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


def test_a_failed_mode_is_shown_as_such():
    results = measured(native=2.0, tcp=1.0)
    results["workloads"]["gpt2"]["modes"]["tcp"] = {"repetitions": [], "error": "it broke"}
    page = tables.markdown(summary.complete(results))
    assert "| GPT-2, 64 tokens greedy | 2.000 | error |" in page and "- gpt2, tcp: it broke" in page


def test_many_samples_are_kept_as_percentiles():
    kept = figures.percentiles(range(10001))
    assert (len(kept), kept[0], kept[50], kept[-1]) == (101, 0, 5000, 10000)
