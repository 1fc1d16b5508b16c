"""The same work over every transport, near and far; and what a person reads when something does not fit."""
import os
import socket

import kit

DELAYS = (None, "1ms")


def tell(record):
    with kit.Worker() as worker:
        for scheme in kit.SCHEMES:
            for delay in DELAYS:
                name = f"work over {scheme}" + (f", {delay} away" if delay else "")
                record.part(name, works, worker, scheme, delay)
        for name, (case, words, code) in MISFITS.items():
            record.part(name, misfit, worker, case, words, code)
        record.part("a worker that takes no more programs", full)
        record.part("the devices of two workers in one program", two_workers, worker)


def works(worker, scheme, delay):
    options = ["--delay", delay] if delay else []
    with worker.left_as_found():
        text = worker.must(kit.program("load"), 3, 12, scheme=scheme, options=options)
    kit.hold(text.endswith("all right\n"), text)


def wrong_token(worker, scheme):
    path = os.path.join(worker.directory, "wrong-token")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("this is not the token of that worker")
    return worker.addresses[scheme], path, worker.fingerprint if scheme == "tls" else None


def wrong_token_plain(worker):
    return wrong_token(worker, "unix")


def wrong_token_tls(worker):
    return wrong_token(worker, "tls")


def wrong_fingerprint(worker):
    return worker.addresses["tls"], worker.token_file, "0123456789abcdef" * 4


def no_fingerprint(worker):
    return worker.addresses["tls"], worker.token_file, None


def nobody_listens(worker):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    return f"tcp:127.0.0.1:{port}", worker.token_file, None


def no_socket(worker):
    return f"unix:{worker.directory}/nothing", worker.token_file, None


def plain_to_tls(worker):
    return worker.addresses["tls"].replace("tls:", "tcp:"), worker.token_file, None


def tls_to_plain(worker):
    return worker.addresses["tcp"].replace("tcp:", "tls:"), worker.token_file, worker.fingerprint


# What to try, what must be read on standard error, and how `dxpu run` ends.
MISFITS = {
    "a wrong token": (wrong_token_plain, ["will not serve this program", "token"], 65),
    "a wrong token over TLS": (wrong_token_tls, ["will not serve this program", "token"], 65),
    "a wrong fingerprint": (wrong_fingerprint, ["is not the worker that you trust", "--fingerprint"], 65),
    "no fingerprint": (no_fingerprint, ["needs other security options", "--fingerprint"], 2),
    "nobody listens": (nobody_listens, ["nobody listens at", "start a worker there"], 64),
    "no socket": (no_socket, ["nobody listens at", "start a worker there"], 64),
    "plain to a TLS address": (plain_to_tls, ["refused the connection", "kind of address"], 65),
    "TLS to a plain address": (tls_to_plain, ["refused the connection", "kind of address"], 65),
}


def misfit(worker, case, words, code):
    address, token_file, fingerprint = case(worker)
    command = [kit.dxpu, "run", "--worker", address, "--token-file", token_file]
    command += ["--fingerprint", fingerprint] if fingerprint else []
    told = kit.run_plainly(command + ["--", kit.program("init")], worker.environment)
    kit.hold(told.returncode == code, "dxpu run ended with", told.returncode, "not", code, told.stderr)
    kit.hold(told.stdout == "", "the program ran:", told.stdout)
    for word in words:
        kit.hold(word in told.stderr, repr(word), "is not in", told.stderr)
    kit.hold("what to do:" in told.stderr, "no next step:", told.stderr)
    # A program that is started around `dxpu run`: cuInit fails, says why, and does not hang.
    library = worker.must("sh", "-c", "echo $LD_LIBRARY_PATH").strip()
    environment = worker.environment | {"LD_LIBRARY_PATH": library, "DXPU_WORKER": address, "DXPU_TOKEN_FILE": token_file}
    environment |= {"DXPU_FINGERPRINT": fingerprint} if fingerprint else {}
    alone = kit.run_plainly([kit.program("init")], environment)
    kit.hold(alone.returncode == 1, "the program ended with", alone.returncode, alone.stdout, alone.stderr)
    kit.hold("ERROR" in alone.stderr and address in alone.stderr, "it did not say why:", alone.stderr)


def full():
    with kit.Worker("--sessions", "2") as worker:
        with worker.start(kit.program("load"), 1, 0) as first, worker.start(kit.program("load"), 1, 0) as second:
            first.wait_for("working")
            second.wait_for("working")
            third = worker.run(kit.program("init"), seconds=30, environment={"DXPU_PATIENCE": "1s"})
            kit.hold(third.returncode in (64, 65), "a third program ended with", third.returncode, third.stdout)
            kit.hold("dxpu: " in third.stderr and "what to do:" in third.stderr, third.stderr)
            first.process.kill()
            first.process.wait()
            kit.until("its place is free again", lambda: worker.run(kit.program("init")).returncode == 0, 5)
            kit.hold(second.process.poll() is None, second.said())


def two_workers(near):
    # One token for both: `dxpu run` shows the same one everywhere.
    with kit.Worker("--token-file", near.token_file) as far:
        addresses = f"{near.addresses['unix']},{far.addresses['tcp']}"
        command = [kit.dxpu, "run", "--worker", addresses, "--token-file", near.token_file]
        with kit.Client(command + ["--", kit.program("two_workers")], near.environment) as client:
            client.wait_for("copied")
            far.process.kill()
            client.ends(0, 10)
