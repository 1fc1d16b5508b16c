"""scripts/why finds the failed tests and their errors in what the parts of `make test` say."""

import pathlib
import subprocess

WHY = pathlib.Path(__file__).parents[2] / "scripts" / "why"

CARGO = """
running 3 tests
thread 'dxpu-commands' (23097) panicked at crates/cuda/worker/tests/support/toy.rs:335:60:
as a test wants it
..F
---- sweep::tests::one stdout ----

thread 'sweep::tests::one' (1234) panicked at crates/pool/slurm/src/sweep.rs:123:9:
assertion `left == right` failed: all
  left: 1
 right: 2

---- job::tests::two stdout ----
Error: Os { code: 2 }

failures:
    job::tests::two
    sweep::tests::one

test result: FAILED. 1 passed; 2 failed
error: test failed, to rerun pass `-p pool-slurm --lib`
make: *** [Makefile:96: part-unit] Error 101
"""
STORY = """
  ok     a job lives (0.1 s)
  FAILED a preempted job runs again (153.1 s)
         after 150 s still: job 14 is COMPLETED: it is FAILED
         n1: something
  FAILED tokens are left (1.0 s)
         Traceback (most recent call last):
           File "story.py", line 3, in tell
             look()
         TypeError: no number
  ok     a job ends (0.1 s)
slurm: 2 passed, 2 failed
"""
PYTEST = """
...F
/usr/lib/x.py:3: AssertionError: 3
FAILED test_small.py::test_a[1] - AssertionError: 3
numba-cuda: 3 of 6 passed (50.0 %), 0 left out, 1 skipped by the suite itself
numba-cuda: test_small.py::test_a[1] failed and is not in numba-known-failures.txt
judges failed: numba
"""
RUSTC = """
error: unused variable: `x`
  --> apps/dxpu/src/a.rs:3:9
   |
error: could not compile `dxpu` (lib) due to 1 previous error
"""


def why(text, lines=10):
    result = subprocess.run([WHY, "-v", f"lines={lines}"], input=text, capture_output=True, text=True, check=True)
    return [line.strip() for line in result.stdout.splitlines()]


def test_a_failed_test_of_cargo_is_named_with_its_panic():
    assert why(CARGO) == [
        "sweep::tests::one: assertion `left == right` failed: all (crates/pool/slurm/src/sweep.rs:123:9)",
        "job::tests::two: Error: Os { code: 2 }",
    ]


def test_a_failed_part_of_a_story_is_named_with_the_line_below_it_or_the_end_of_its_traceback():
    assert why(STORY) == [
        "a preempted job runs again (153.1 s): after 150 s still: job 14 is COMPLETED: it is FAILED",
        "tokens are left (1.0 s): TypeError: no number",
    ]


def test_a_failed_test_of_pytest_and_a_surprise_of_numba_are_named():
    assert why(PYTEST) == [
        "FAILED test_small.py::test_a[1] - AssertionError: 3",
        "numba-cuda: test_small.py::test_a[1] failed and is not in numba-known-failures.txt",
    ]


def test_an_error_of_the_compiler_says_where_it_is():
    assert why(RUSTC) == ["error: unused variable: `x` (apps/dxpu/src/a.rs:3:9)"]


def test_words_that_it_does_not_know_are_told_by_their_last_lines():
    assert why("one\n\ntwo\nthree\nfour\nSegmentation fault\nmake: *** [x] Error 1\n") == ["two", "three", "four", "Segmentation fault"]


def test_the_rest_is_counted():
    assert why(STORY, lines=1)[1:] == ["… and 1 more"]
