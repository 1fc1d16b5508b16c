"""Runs Numba-CUDA's own tests, as its package ships them, and counts.

A pytest plugin. It leaves out what `numba-left-out.txt` names, lets everything else count and prints the figures. The tests
that fail must be exactly those that `numba-known-failures.txt` names: the run fails when another test fails, and also when
one of the named tests passes, so that the list stays true. Each entry of both files has its reason.

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
    """What became of each test, gathered in the process that reports."""

    def __init__(self):
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

    def count(self, outcome):
        return sum(1 for each in self.outcomes.values() if each == outcome)

    @property
    def passed(self):
        return self.count("passed")

    @property
    def counted(self):
        return self.passed + self.count("failed")

    def surprises(self, known):
        """What differs from the list of known failures: a line for each test."""
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
    config.figures = Figures()


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
        if gone_since := [name for name, _ in read_list(KNOWN_FAILURES) if name not in there]:
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


# The reports arrive where the hook below runs: in the one process, or in the controller of several.
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_logreport(report):
    yield
    _session_figures.note(report)


_session_figures = Figures()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    global _session_figures
    _session_figures = session.config.figures


def pytest_sessionfinish(session, exitstatus):
    if hasattr(session.config, "workeroutput"):
        return
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED if surprises(session.config) else pytest.ExitCode.OK


def surprises(config):
    return config.figures.surprises({name for name, _ in read_list(KNOWN_FAILURES)})


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(config.figures.line())
    for line in surprises(config):
        terminalreporter.write_line(f"numba-cuda: {line}", red=True)
