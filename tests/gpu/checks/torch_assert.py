"""A device-side assertion: the same error, at the same call, and every call after it fails too."""

import torch
from say import attempts, note, same

x = torch.arange(10, device="cuda", dtype=torch.float32)


def an_index_out_of_range():
    y = x[torch.tensor([100], device="cuda")]
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        note("type", type(error).__name__)
        return str(error).splitlines()[0]
    return f"no error: {y}"


def later_calls_fail_too():
    found = []
    for body in (lambda: x + 1, lambda: torch.cuda.synchronize(), lambda: x.cpu(), lambda: torch.cuda.mem_get_info()):
        try:
            body()
            torch.cuda.synchronize()
            found.append("no error")
        except RuntimeError as error:
            found.append(str(error).splitlines()[0])
    same("errors", found)


attempts(an_index_out_of_range, later_calls_fail_too)
