"""What a prepared workload is, and where it runs."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Where:
    """The device a workload runs on; `is_tiny` shrinks everything, to try the harness without a GPU."""

    device: str
    is_tiny: bool

    def pick(self, size, tiny_size):
        return tiny_size if self.is_tiny else size

    @property
    def synchronize(self):
        """The call that waits for the device; what is timed keeps it in a variable, for looking it up costs too."""
        if self.device != "cuda":
            return lambda: None
        import torch

        return torch.cuda.synchronize


@dataclasses.dataclass
class Prepared:
    """A workload that is ready to run."""

    step: Callable[[], object]
    # Numbers that must come out the same natively and remotely, asked after the warm-up: no speed counts with other results.
    probe: Callable[[], list]
