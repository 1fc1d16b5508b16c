"""Runs Numba-CUDA's own tests, as its package ships them, and counts.

A pytest plugin. It leaves out what `numba-left-out.txt` names (each entry there has its reason), lets everything else
count, prints the figures and fails the run when fewer than 80 % of the counted tests pass.

Counted are tests that passed or failed. A test that the suite itself skips (because a tool or a second GPU is
missing) proves nothing either way: it is reported, not counted.
"""

import fnmatch
import pathlib

import numba.cuda  # noqa: F401  Before any test module, or Numba's redirector registers the CUDA target twice.
import pytest

SHARE_NEEDED = 0.80
LEFT_OUT = pathlib.Path(__file__).parent / "numba-left-out.txt"


def read_left_out(text):
    """Pairs of (pattern, reason). A line that starts with `# ` gives the reason for the patterns below it."""
    reason, entries = None, []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if line.startswith("#"):
            reason = line.lstrip("# ")
        elif not line:
            reason = None
        else:
            if not reason:
                raise ValueError(f"{LEFT_OUT.name}:{number}: {line} is left out without a reason")
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

    @property
    def enough(self):
        return self.counted > 0 and self.passed >= SHARE_NEEDED * self.counted

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
    entries = read_left_out(LEFT_OUT.read_text())
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
        figures = session.config.figures
        session.exitstatus = pytest.ExitCode.OK if figures.enough else pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    terminalreporter.write_line(config.figures.line())
    if not config.figures.enough:
        terminalreporter.write_line(f"numba-cuda: fewer than {SHARE_NEEDED:.0%} passed", red=True)
