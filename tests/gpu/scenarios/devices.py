"""Several workers in one process: each is a device."""

import compare
import workers
from bed import hold, tail

SECONDS = 120


def two_workers_are_two_devices(bed):
    """Two workers on the one GPU show as two devices, with copies between them."""
    # `dxpu run` shows one token and trusts one certificate, so both workers have the same.
    shared = ["--identity-dir", bed.place.make("two-devices-identity")]
    lines = []
    with bed.new_worker(*shared) as first, bed.new_worker(*shared) as second:
        for scheme in ("tcp", "shm"):
            both = _Both(first, second)
            result = bed.run("two_devices", scheme, bed.python("programs/two_devices.py"), SECONDS, worker=both)
            hold(result.problem() is None, scheme, result.problem())
            facts = compare.facts(result.out)
            wrong = [f"{key}: {fact.value}" for key, fact in facts.items() if fact.kind == "!"]
            hold(not wrong, f"over {scheme}:\n" + "\n".join(wrong) + "\n" + tail(result.err, 30))
            hold(len(facts) >= 10, f"over {scheme}: only {len(facts)} facts")
            lines.append(f"{scheme}: {len(facts)} facts right in {result.seconds:.0f} s")
    return lines


class _Both:
    """Two workers where one is expected."""

    def __init__(self, *members):
        self.members = members

    def client(self, scheme, *program, options=()):
        return workers.client_of(self.members, scheme, *program, options=options)
