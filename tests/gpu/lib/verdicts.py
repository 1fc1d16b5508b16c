"""Tells what became of each check, keeps it, and says how the whole run ended."""

import json
import os
import time


class Report:
    """Tells each verdict as it comes and keeps all of them, so that a run that is ended early is not lost."""

    def __init__(self, out):
        self.out = out
        self.verdicts = []
        self.began = time.monotonic()
        self.shown = open(os.path.join(out, "report.txt"), "w")

    def say(self, text):
        print(text, flush=True)
        print(text, file=self.shown, flush=True)

    def add(self, verdict):
        self.verdicts.append(verdict)
        mark = {"ok": "ok    ", "failed": "FAILED", "skipped": "skip  "}[verdict.status]
        self.say(f"{time.monotonic() - self.began:5.0f} s  {mark} {verdict.name}")
        for text in verdict.lines:
            for line in text.splitlines():
                self.say(f"                 {line[:240]}")
        with open(os.path.join(self.out, "summary.json"), "w") as file:
            json.dump([vars(verdict) for verdict in self.verdicts], file, indent=1)

    def end(self):
        count = {status: sum(v.status == status for v in self.verdicts) for status in ("ok", "failed", "skipped")}
        for verdict in self.verdicts:
            if verdict.status == "failed":
                self.say(f"failed: {verdict.name}")
        self.say(f"what every program said is in {self.out}")
        self.say(f"gpu: {count['ok']} passed, {count['failed']} failed, {count['skipped']} skipped")
        if not count["ok"]:
            self.say("gpu: nothing was checked: every check was skipped, or none has the name that --only gives")
        return 0 if count["ok"] and not count["failed"] else 1
