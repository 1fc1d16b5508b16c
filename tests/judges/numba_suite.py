"""Runs Numba-CUDA's own tests, as its package ships them, and counts.

A pytest plugin. It leaves out what `numba-left-out.txt` names, lets everything else count and prints the figures. The tests
that fail must be exactly those that `numba-known-failures.txt` names: the run fails when another test fails, and also when
one of the named tests passes, so that the list stays true. Each entry of both files has its reason.

A named test that fails is shown as an expected failure (`x`), so that FAILED in a log is always a surprise. The figures still count
it as failed.

Counted are tests that passed or failed. A test that the suite itself skips (because a tool or a second GPU is
missing) proves nothing either way: it is reported, not counted.
"""

import fnmatch
import pathlib

import numba.cuda  # noqa: F401  Before any test module, or Numba's redirector registers the CUDA target twice.
import pytest

HERE = pathlib.Path(__file__).parent
LEFT_OUT = HERE / "numba-left-out.txt"
KNOWN_FAILURES = HERE / "numba-known-failures.txt"


def read_list(path):
    """Pairs of (pattern, reason). A line that starts with `# ` gives the reason for the patterns below it."""
    reason, entries = None, []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        line = line.strip()
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif not line:
            reason = None
        else:
            if not reason:
                raise ValueError(f"{path.name}:{number}: {line} stands there without a reason")
            entries.append((line, reason))
    return entries


def short_id(nodeid):
    """`cudapy/test_sm.py::TestSharedMemory::test_x`, wherever the package is installed."""
    return nodeid.rsplit("cuda/tests/", 1)[-1]


@pytest.fixture
def initialize_from_pytest_config(request):
    """The suite's conftest, which its package does not ship, has this fixture; here files are never dumped."""
    request.cls._dump_failed_filechecks = False


class Figures:
    """What became of each test, gathered in the process that reports. `known` gives the reason of each known failure."""

    def __init__(self, known=None):
        self.known = known or {}
        self.outcomes = {}
        self.left_out = 0

    def note(self, report):
        seen = self.outcomes.get(report.nodeid)
        if report.failed:
            self.outcomes[report.nodeid] = "failed"
        elif hasattr(report, "context"):
            return  # A part of a test (`subTest`): only its failure says something about the whole.
        elif report.skipped and seen != "failed":
            # An expected failure that did fail is reported as skipped with `wasxfail`: it did what its authors expect.
            self.outcomes[report.nodeid] = "passed" if hasattr(report, "wasxfail") else "skipped"
        elif report.when == "call" and seen is None:
            self.outcomes[report.nodeid] = "passed"

    def expect(self, report):
        """Turns the failure of a known test into an expected one, and its pass into a failure, as a strict xfail does.

        pytest's own mark would not do: it takes each part (`subTest`) that passes for a pass of the whole test.
        """
        reason = self.known.get(short_id(report.nodeid))
        if reason is None:
            return
        is_whole = report.when == "call" and not hasattr(report, "context")
        if report.failed or (is_whole and report.passed and self.outcomes.get(report.nodeid) == "failed"):
            report.outcome, report.wasxfail = "skipped", reason
        elif is_whole and report.passed:
            report.outcome, report.longrepr = "failed", f"[XPASS(strict)] {reason}"

    def count(self, outcome):
        return sum(1 for each in self.outcomes.values() if each == outcome)

    @property
    def passed(self):
        return self.count("passed")

    @property
    def counted(self):
        return self.passed + self.count("failed")

    def surprises(self):
        """What differs from the list of known failures: a line for each test."""
        known = set(self.known)
        by_id = {short_id(nodeid): outcome for nodeid, outcome in self.outcomes.items()}
        failed = {name for name, outcome in by_id.items() if outcome == "failed"}
        lines = [f"{name} failed and is not in {KNOWN_FAILURES.name}" for name in sorted(failed - known)]
        lines += [
            f"{name} is in {KNOWN_FAILURES.name} and passed: take it out"
            for name in sorted(known)
            if by_id.get(name) == "passed"
        ]
        return lines if self.counted else ["no test was counted"]

    def line(self):
        share = 100 * self.passed / self.counted if self.counted else 0
        return (
            f"numba-cuda: {self.passed} of {self.counted} passed ({share:.1f} %), "
            f"{self.left_out} left out, {self.count('skipped')} skipped by the suite itself"
        )


def pytest_configure(config):
    config.figures = Figures(dict(read_list(KNOWN_FAILURES)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    entries = read_list(LEFT_OUT)
    kept, gone, used = [], [], set()
    for item in items:
        matches = [pattern for pattern, _ in entries if fnmatch.fnmatchcase(short_id(item.nodeid), pattern)]
        used.update(matches)
        (gone if matches else kept).append(item)
    # An entry that matches nothing is stale, and would hide the next test of that name. Only a whole run can tell.
    if not config.getoption("keyword") and config.getoption("file_or_dir") == ["numba.cuda.tests"]:
        stale = [pattern for pattern, _ in entries if pattern not in used]
        if stale:
            raise pytest.UsageError(f"{LEFT_OUT.name} names tests that do not exist: {', '.join(stale)}")
        there = {short_id(item.nodeid) for item in kept}
        if gone_since := [name for name in config.figures.known if name not in there]:
            raise pytest.UsageError(f"{KNOWN_FAILURES.name} names tests that do not run: {', '.join(gone_since)}")
    items[:] = kept
    config.figures.left_out = len(gone)
    if gone:
        config.hook.pytest_deselected(items=gone)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = len(gone)


def pytest_testnodedown(node, error):
    """With several processes, only the workers collect; they send the count along when they end."""
    output = getattr(node, "workeroutput", None) or {}
    figures = node.config.figures
    figures.left_out = max(figures.left_out, output.get("left_out", 0))


# A report is counted as it came, and changed before pytest prints it.
@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_logreport(report):
    if _reporting is not None:
        _reporting.note(report)
        _reporting.expect(report)
    yield


# The figures of the process that prints: the only one, or the controller of several. None in a worker of a controller, which would
# otherwise change a report before the controller counts it.
_reporting = None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    global _reporting
    _reporting = None if hasattr(session.config, "workeroutput") else session.config.figures


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workeroutput"):
        return
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        surprises = session.config.figures.surprises()
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if surprises else pytest.ExitCode.OK


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(config.figures.line())
    for line in config.figures.surprises():
        terminalreporter.write_line(f"numba-cuda: {line}", red=True)
