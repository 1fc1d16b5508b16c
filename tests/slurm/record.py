"""Counts parts of stories; below one that failed are the lines of Slurm's logs, of Prolog and of the jobs that may say why."""
import re

import kit

LINES_MAX = 40
# What slurmctld, slurmd and `dxpu slurm` write when something goes wrong or a job changes its state.
TELLING = re.compile(r"error|fatal|warning|fail|dxpu|prolog|epilog|requeu|preempt|reissued|revoked|killed|drain|not responding", re.IGNORECASE)
# What they write all the time.
NOISE = re.compile(r"ran for usec|status=0, response|test_stage_in|task/none|spank|debug levels are|prolog to complete|launch task StepId")


class Record(kit.Record):
    def __init__(self):
        super().__init__()
        self.slurm = None

    def part(self, name, body, *arguments):
        failed, sizes, jobs = self.failed, self.sizes(), len(self.slurm.submitted)
        super().part(name, body, *arguments)
        if self.failed > failed:
            self.explain(sizes, self.slurm.submitted[jobs:])

    def files(self):
        """Logs of daemons, of Prolog and the health check, what the mender did, and what jobs said."""
        folder = self.slurm.folder
        # What a daemon writes to its standard error is in its log, too.
        logs = [path for path in sorted((folder / "log").iterdir()) if path.suffix != ".out"]
        return [path for path in [*logs, folder / "state" / "mended", *sorted((folder / "out").glob("*.said"))] if path.is_file()]

    def sizes(self):
        return {path: path.stat().st_size for path in self.files()}

    def explain(self, sizes, jobs):
        """Prints what is new in each file since the part began: all that jobs said, of logs what names a job of this part or a failure."""
        named = re.compile(r"\b(?:[Jj]ob|JobId=|StepId=) ?(?:%s)\b" % "|".join(map(str, jobs))) if jobs else None
        for path in self.files():
            with open(path, errors="replace") as file:
                file.seek(sizes.get(path, 0))
                lines = file.read().splitlines()
            if path.suffix != ".said":
                lines = [line for line in lines if (TELLING.search(line) or (named and named.search(line))) and not NOISE.search(line)]
            for line in lines[-LINES_MAX:]:
                print(f"         {path.name}: {line[:400]}", flush=True)
