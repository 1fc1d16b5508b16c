"""The counting of numba_suite.py, on a small suite with every kind of test: a count that cannot fail would prove nothing."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent
pytest_plugins = ["pytester"]

SUITE = """
import unittest
import pytest

class Whole(unittest.TestCase):
    def test_passes(self):
        pass

    @unittest.expectedFailure
    def test_fails_as_its_authors_expect(self):
        self.fail()

    def test_is_skipped(self):
        self.skipTest("there is no second GPU")

    def test_known(self):
        self.fail("the known reason")

class Parts(unittest.TestCase):
    def test_known(self):
        for number in range(3):
            with self.subTest(number=number):
                self.assertNotEqual(number, 1)

    def test_passes(self):
        for number in range(3):
            with self.subTest(number=number):
                pass

def test_surprises(): SURPRISE
"""
KNOWN = "# A reason.\ntest_small.py::Whole::test_known\ntest_small.py::Parts::test_known\n"


def run(pytester, surprise="pass", known=KNOWN, processes=0):
    """Runs the small suite under the plugin, as tests/judges/run does."""
    (pytester.path / "known.txt").write_text(known)
    pytester.makeconftest(
        f"import pathlib, sys\nsys.path.insert(0, {str(HERE)!r})\n"
        "import numba_suite\nnumba_suite.KNOWN_FAILURES = pathlib.Path(__file__).with_name('known.txt')\n"
        "pytest_plugins = ['numba_suite']\n"
    )
    pytester.makepyfile(test_small=SUITE.replace("SURPRISE", surprise))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q", "-rfE", "--tb=line", "-n", str(processes))
    return result.ret, result.stdout.str()


@pytest.mark.parametrize("processes", [0, 2])
def test_known_failures_count_as_failed_and_are_not_shown_as_failures(pytester, processes):
    code, said = run(pytester, processes=processes)
    assert code == 0, said
    # Passed: two that pass, the one whose authors expect that it fails, and the function.
    assert "numba-cuda: 4 of 6 passed (66.7 %), 0 left out, 1 skipped by the suite itself" in said
    assert "FAILED" not in said and "2 failed" not in said and "FAIL" not in said, said


@pytest.mark.parametrize("processes", [0, 2])
def test_an_unlisted_failure_fails_the_run(pytester, processes):
    code, said = run(pytester, surprise="assert False", processes=processes)
    assert code == 1, said
    assert "numba-cuda: 3 of 6 passed" in said
    assert "test_small.py::test_surprises failed and is not in known.txt" in said
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1 and "test_surprises" in failed[0], said


@pytest.mark.parametrize("test", ["Whole::test_passes", "Parts::test_passes"])
def test_a_known_failure_that_passes_fails_the_run(pytester, test):
    code, said = run(pytester, known=KNOWN + f"test_small.py::{test}\n")
    assert code == 1, said
    assert "numba-cuda: 4 of 6 passed" in said
    assert f"test_small.py::{test} is in known.txt and passed: take it out" in said
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1 and test in failed[0], said


def test_a_part_that_fails_without_being_known_fails_the_run(pytester):
    code, said = run(pytester, known="# A reason.\ntest_small.py::Whole::test_known\n")
    assert code == 1, said
    assert "test_small.py::Parts::test_known failed and is not in known.txt" in said


