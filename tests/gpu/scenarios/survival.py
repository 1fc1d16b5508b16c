"""Programs that outlive their sessions (`dxpu run --survive`): the same losses, to the bit."""

import os
import random
import re
import signal

from bed import hold, tail, until

from .faults import READY_SECONDS, TRAINERS

STEPS = 400
# A session is killed when the program is at these steps.
KILLED_AT = (60, 200)
# PyTorch's networks by name; on the soft driver CuPy's small one alone.
MODELS = {"nvidia": ("mlp", "resnet", "bert"), "soft": ("mlp",)}
# The larger networks take fewer steps.
STEPS_OF = {"mlp": STEPS, "resnet": 120, "bert": 120}


def the_session_is_killed_and_the_program_goes_on(bed):
    """SIGKILL of the session in mid-training: no error, and every loss is that of the undisturbed program."""
    lines, chance = [], random.Random(20261116)
    for model in MODELS[bed.driver]:
        steps = STEPS_OF[model]
        reference = _losses(_trainer(bed, f"survive-{model}-reference", "tcp", model, steps, False).finish(READY_SECONDS))
        hold(len(reference) == steps, model, "the undisturbed program ended early:", len(reference))
        for scheme in ("tcp", "tls", "shm"):
            lines.append(_killed_in_mid_training(bed, model, scheme, steps, reference, chance))
    return lines


def _trainer(bed, name, mode, model, steps, survives):
    program = bed.python(TRAINERS[bed.driver]) + [str(steps)] + ([model] if bed.driver == "nvidia" else [])
    return bed.start(name, mode, program, options=["--survive"] if survives else [])


def _losses(result):
    hold(result.problem() is None, "the program fails:", result.problem(), tail(result.out, 3))
    return re.findall(r"^step \d+ [\d.]+ (\S+)$", result.out, re.M)


def _killed_in_mid_training(bed, model, scheme, steps, reference, chance):
    worker, what = bed.worker(), f"{model}, {scheme}"
    trainer = _trainer(bed, f"survive-{model}-{scheme}", scheme, model, steps, True)
    try:
        for at in KILLED_AT:
            at = min(at, steps // 2) + chance.randrange(10)
            trainer.wait_for(f"step {at} ", READY_SECONDS)
            session = worker.session_of(trainer.pid)
            hold(session, what, "the worker's log does not name the session of", trainer.pid)
            os.kill(session, signal.SIGKILL)
            until(f"{what}: another session serves the program", lambda: worker.session_of(trainer.pid) != session, 30)
        result = trainer.finish(READY_SECONDS)
    finally:
        trainer.end()
    losses = _losses(result)
    hold(losses == reference, what, "the losses differ from step", _first_difference(losses, reference))
    gaps = [int(gap) for gap in re.findall(r"goes on in another session after (\d+) ms", result.err)]
    hold(gaps, what, "nothing was resumed:", tail(result.err))
    return f"{what}: {len(losses)} losses equal to the bit; resumed after {', '.join(map(str, gaps))} ms"


def _first_difference(losses, reference):
    pairs = enumerate(zip(losses, reference))
    return next((at for at, (loss, expected) in pairs if loss != expected), min(len(losses), len(reference)))
