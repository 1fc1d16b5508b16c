"""Rows of bench/gpu/share.py as they are measured: told, written after each one, and left out when the time is over."""

import json
import os
import time

import share_plot
import share_tables


class Rows:
    """`results` is what share.json has. A run that is cut short keeps what it has measured."""

    def __init__(self, options, about):
        self.options = options
        self.results = {"about": about, "options": vars(options), "service_us": {}, "rows": [], "left_out": []}
        self._until = time.monotonic() + options.budget if options.budget else float("inf")

    def add(self, row):
        self.results["rows"].append(row)
        print(share_tables.line(row), flush=True)
        self.write()

    def write(self):
        if not self.options.out:
            return
        self.write_files({"share.json": json.dumps(self.results, indent=1)})
        try:
            self.write_files({"share.md": share_tables.page(self.results), "plot.svg": share_plot.svg(self.results["rows"])})
        except Exception as error:
            # Both can be made again from share.json; the time on the GPU cannot.
            print(f"the page or the plot: {type(error).__name__}: {error}", flush=True)

    def write_files(self, texts):
        if not self.options.out:
            return
        os.makedirs(self.options.out, exist_ok=True)
        for name, text in texts.items():
            with open(os.path.join(self.options.out, name), "w") as file:
                file.write(text)

    def is_time_over(self):
        return time.monotonic() > self._until

    def tried(self, programs, about, body, *values):
        """Measures one row; `about` says which one. A row that fails is told, and the others are measured all the same. The
        programs of its side are started again, because what they are doing is not known."""
        if self.is_time_over():
            if not self.results["left_out"]:
                print(f"{self.options.budget:.0f} s are over: no further row is measured", flush=True)
            self.results["left_out"].append(about)
            return False
        try:
            body(*values)
            return True
        except Exception as error:
            self.add(about | {"error": f"{type(error).__name__}: {error}"})
            if "side" in about:
                programs.drop(about["side"])
            return False
