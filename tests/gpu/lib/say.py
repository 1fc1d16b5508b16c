"""How a check tells what it found, one line a fact; `run` compares the lines of a native and a remote process.

    = key value              must be the same
    ~ key tolerance value    a number that may differ by this share of itself
    . key value              shown, not compared: times, addresses, sizes of caches
    ! key error              something raised that should not; on the native side the check itself is wrong

Lines that start otherwise are ignored, so libraries may print what they like.
"""

import hashlib
import traceback


def same(key, value):
    """A fact that must be the same, to the letter."""
    text = value.hex() if isinstance(value, float) else str(value)
    print("=", _word(key), " ".join(text.split()), flush=True)


def near(key, value, tolerance=1e-5):
    """A number that may differ a little, because its computation is not ordered."""
    print("~", _word(key), tolerance, repr(float(value)), flush=True)


def note(key, value):
    """Something to read, not to compare."""
    print(".", _word(key), " ".join(str(value).split()), flush=True)


def bits(key, *arrays):
    """The bits of tensors or arrays must be the same; shapes and types too."""
    same(key, fingerprint(*arrays))


def fingerprint(*arrays):
    """A digest of the bits of tensors or arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        array = _on_the_host(array)
        digest.update(f"{array.dtype} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:24]


def attempt(key, body):
    """Runs `body`; its result must be the same, and not False. An error is told, and later attempts go on."""
    try:
        result = body()
    except Exception as error:
        traceback.print_exc()
        print("!", _word(key), _one_line(error), flush=True)
        return
    if result is None:
        same(key, "done")
    elif result is False:
        print("!", _word(key), "is not so", flush=True)
    elif isinstance(result, (tuple, list)) and result and all(map(_is_array, result)):
        bits(key, *result)
    elif _is_array(result):
        bits(key, result)
    else:
        same(key, result)


def refused(key, body, kind=Exception):
    """Runs `body`, which must raise; the error's type and first line must be the same."""
    try:
        body()
    except kind as error:
        same(key, _one_line(error))
        return
    raise AssertionError(f"{key} was not refused")


def attempts(*bodies):
    """Attempts functions under their own names: a check is a list of functions, each one idea."""
    for body in bodies:
        attempt(body.__name__, body)


def _one_line(error):
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def _is_array(value):
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _on_the_host(array):
    """A NumPy array with the same bits."""
    import numpy

    if type(array).__module__.startswith("torch"):
        import torch

        array = array.detach().cpu().contiguous().resolve_conj().resolve_neg()
        if array.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
            array = array.view({1: torch.uint8, 2: torch.int16}[array.element_size()])
        return array.numpy()
    if type(array).__module__.startswith("cupy"):
        return array.get()
    return numpy.asarray(array)


def _word(key):
    return "-".join(str(key).split())
