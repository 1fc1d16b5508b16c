"""The ways a workload is run: natively, over each transport, over TCP with an added round trip, each with one of PyTorch's allocators.
Two more say how fast any driver could be: natively with a driver that does nothing, and how long the GPU itself works."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mode:
    name: str
    # Of `dxpu run`; empty natively.
    scheme: str = ""
    delay: str = ""
    # What the program finds in its environment, as pairs.
    environment: tuple = ()
    # Further words for `dxpu run`.
    words: tuple = ()

    @property
    def kind(self):
        return "remote" if self.scheme else "native"

    def command(self, worker, *program):
        """The command line that runs a program in this mode."""
        if not self.scheme:
            return list(map(str, program))
        return worker.client(self.scheme, *program, options=[*self.words, *(["--delay", self.delay] if self.delay else [])])


@dataclasses.dataclass(frozen=True)
class Limit(Mode):
    """On the machine's own driver, whose orders are left out while steps are timed: what the program's own processor time needs."""

    dxpu: str = ""

    @property
    def kind(self):
        return "limit"

    def command(self, worker, *program):
        # The runner switches injection off before anything is injected.
        return [self.dxpu, "inject", "--rtt", "8us", "--", *map(str, program)]


@dataclasses.dataclass(frozen=True)
class Gpu(Mode):
    """Natively and watched: how long the GPU itself works in a step, whatever the program's processor does meanwhile."""

    @property
    def kind(self):
        return "gpu"


# Modes that are no way to run a program.
BOUNDS = ("limit", "gpu")
# PyTorch keeps memory itself; with this it asks the driver's pool for every tensor.
ASYNC = (("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),)


def parse(names, delays, dxpu=None):
    """Modes by their names, then TCP with each delay. `limit` needs the path of dxpu. A name that ends in `+async` has PyTorch use cudaMallocAsync; one
    that ends in `+survive` is protected against the loss of its session."""
    known = {"native": Mode("native"), "gpu": Gpu("gpu")} | {scheme: Mode(scheme, scheme) for scheme in ("tcp", "tls", "unix", "shm")}
    known |= {f"{name}+async": dataclasses.replace(mode, name=f"{name}+async", environment=ASYNC) for name, mode in known.items() if mode.kind not in BOUNDS}
    survives = {name: mode for name, mode in known.items() if mode.scheme}
    known |= {f"{name}+survive": dataclasses.replace(mode, name=f"{name}+survive", words=("--survive",)) for name, mode in survives.items()}
    if dxpu:
        known["limit"] = Limit("limit", dxpu=dxpu)
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"no such mode: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names] + [Mode(f"tcp+{delay}", "tcp", delay) for delay in delays]
