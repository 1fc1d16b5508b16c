"""The ways a workload is run: natively, over each transport, and over TCP with an added round trip."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    # Of `dxpu run`; empty natively.
    scheme: str = ""
    delay: str = ""

    @property
    def kind(self):
        return "remote" if self.scheme else "native"

    def command(self, worker, *program):
        """The command line that runs a program in this mode."""
        if not self.scheme:
            return list(map(str, program))
        return worker.client(self.scheme, *program, options=["--delay", self.delay] if self.delay else [])


def parse(names, delays):
    """Modes by their names, then TCP with each delay."""
    known = {"native": Mode("native")} | {scheme: Mode(scheme, scheme) for scheme in ("tcp", "tls", "unix", "shm")}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such mode: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] + [Mode(f"tcp+{delay}", "tcp", delay) for delay in delays]
