"""Programs that outlive their sessions (`dxpu run --survive`): the same losses, to the bit."""

import os
import random
import re
import signal
import time

from bed import Wrong, hold, tail, until

from .faults import READY_SECONDS, TRAINERS

# So many sessions of each program are killed, over each transport: about twenty in all.
KILLS = int(os.environ.get("GPU_KILLS", "7"))
# How they are protected.
WAY = os.environ.get("GPU_WAY", "--survive")
# PyTorch's networks by name; on the soft driver CuPy's small one alone.
MODELS = {"nvidia": ("mlp", "resnet", "bert", "gpt2", "graph"), "soft": ("mlp",)}
# Seconds of work, not counting the pauses: time for an image to become safe between two of twenty kills.
STEPS_OF = {"mlp": 1500, "resnet": 500, "bert": 200, "gpt2": 60, "graph": 300}
# Soft GPUs are slower.
STEPS_SOFT = 200
# What one program may need.
LAST_SECONDS = 25
# The pause that is promised, from the loss to the program's next word.
GAP_MAX_MS = 3000


def the_session_is_killed_and_the_program_goes_on(bed):
    """SIGKILL of the session at random steps: no error, and every value is that of the undisturbed program."""
    lines, wrong, chance, reference = [], [], random.Random(20261116), {}
    chosen = os.environ.get("GPU_MODELS", "")
    for scheme in os.environ.get("GPU_SCHEMES", "tcp,tls,shm").split(","):
        for model in chosen.split(",") if chosen else MODELS[bed.driver]:
            steps = STEPS_OF[model] if bed.driver == "nvidia" else STEPS_SOFT
            if time.monotonic() > bed.deadline - LAST_SECONDS:
                lines.append(f"{model}, {scheme}: no time left")
                continue
            try:
                if model not in reference:
                    undisturbed = _trainer(bed, f"survive-{model}-reference", "tcp", model, steps, False).finish(READY_SECONDS)
                    reference[model] = _losses(undisturbed)
                    hold(len(reference[model]) == steps, model, "the undisturbed program ended early:", len(reference[model]))
                lines.append(_killed_in_mid_training(bed, model, scheme, steps, reference[model], chance))
            except Wrong as error:
                # The others are tried all the same: one word about each is worth more than all about the first.
                wrong.append(f"{model}, {scheme}: {error}")
    hold(not wrong, "; ".join(wrong), *lines)
    return lines


def _trainer(bed, name, mode, model, steps, survives):
    program = bed.python(TRAINERS[bed.driver]) + [str(steps)] + ([model] if bed.driver == "nvidia" else [])
    return bed.start(name, mode, program, options=[WAY] if survives else [])


def _losses(result):
    hold(result.problem() is None, "the program fails:", result.problem(), tail(result.out, 3))
    return re.findall(r"^step \d+ [\d.]+ (\S+)$", result.out, re.M)


def _killed_in_mid_training(bed, model, scheme, steps, reference, chance):
    worker, what = bed.worker(), f"{model}, {scheme}"
    trainer = _trainer(bed, f"survive-{model}-{scheme}", scheme, model, steps, True)
    try:
        for at in sorted(chance.sample(range(5, steps - 5), KILLS)):
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
    if bed.driver == "nvidia":
        hold(max(gaps) <= GAP_MAX_MS, what, "a pause of", max(gaps), "ms")
    return f"{what}: {len(losses)} values equal to the bit; {KILLS} sessions killed, resumed after {', '.join(map(str, gaps))} ms"


def with_default_flags_it_goes_on_or_says_why(bed):
    """Programs as most are: values may differ from run to run. With --survive a program goes on, or ends and names the bytes that came
    differently. With careful it goes on. In no case does it go on with other values than those it saw and say nothing."""
    lines, chance = [], random.Random(20261118)
    chosen = os.environ.get("GPU_MODELS", "")
    for model in chosen.split(",") if chosen else ("resnet", "bert") if bed.driver == "nvidia" else MODELS[bed.driver]:
        steps = STEPS_OF[model] if bed.driver == "nvidia" else STEPS_SOFT
        for way in ("--survive", "--survive=careful"):
            lines.append(_with_default_flags(bed, model, way, steps, chance))
    return lines


def _with_default_flags(bed, model, way, steps, chance):
    worker, what = bed.worker(), f"{model}, {way}"
    program = bed.python(TRAINERS[bed.driver]) + [str(steps)] + ([model] if bed.driver == "nvidia" else [])
    trainer = bed.start(f"default-{model}-{way.strip('-').replace('=', '-')}", "tcp", program, options=[way], environment={"TRAIN_FLAGS": "default"})
    kills, is_over = 0, lambda: trainer.process.poll() is not None
    try:
        for at in sorted(chance.sample(range(5, steps - 5), KILLS)):
            word = f"step {at} "
            until(f"{what} says {word!r}", lambda: word in trainer.said() or is_over(), READY_SECONDS)
            if is_over():
                break
            session = worker.session_of(trainer.pid)
            hold(session, what, "the worker's log does not name the session of", trainer.pid)
            os.kill(session, signal.SIGKILL)
            kills += 1
            until(f"{what}: another session, or its end", lambda: is_over() or worker.session_of(trainer.pid) != session, 30)
        result = trainer.finish(READY_SECONDS)
    finally:
        trainer.end()
    done = len(re.findall(r"^step \d+ [\d.]+ \S+$", result.out, re.M))
    gaps = re.findall(r"goes on in another session after (\d+) ms", result.err)
    is_told = "other bytes than before the loss" in result.err
    hold(done == steps or is_told, what, f"ended after {done} of {steps} steps without a word about it:", tail(result.err))
    hold(done == steps or "careful" not in way, what, f"ended after {done} of {steps} steps:", tail(result.err))
    ended = "all steps done" if done == steps else f"ended after {done} steps, and named the bytes that came differently"
    return f"{what}: {kills} sessions killed, resumed after {', '.join(gaps)} ms; {ended}"


def _first_difference(losses, reference):
    pairs = enumerate(zip(losses, reference))
    return next((at for at, (loss, expected) in pairs if loss != expected), min(len(losses), len(reference)))
