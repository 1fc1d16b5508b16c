"""Every kind of identity revoked while it is in use: what it opened is closed, what was made with it goes with it, and
nothing else is disturbed. And a box's identity that was copied, and one whose certificate ended while it was off."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import kit
import pool_kit
import story_host
from pool import Pool

REFUSED = 65


def tell(record):
    with Pool() as pool:
        pool.box("first", "--soft", "1", "--memory", "1GiB")
        pool.box("second", "--soft", "1", "--memory", "1GiB")
        kit.until(lambda: f"two GPUs: {pool.logs()}", lambda: len(pool.gpus()) == 2, 60)
        pool.all_free()
        record.part("a tenant's token: its program and its lease end, others' go on", tenant_token, pool)
        record.part("an admin's token: what was made with it goes with it, those who watch are sent away", admin_token, pool)
        record.part("an operator's and a viewer's token, all of theirs at once", operator_and_viewer, pool)
        record.part("a lease's token opens nothing, also while the manager is away", lease_token, pool)
        record.part("a box whose certificate ended while it was off comes back by its key", box_returns, pool)
        record.part("a box's identity that was copied is told", copied, pool)
        record.part("a box: its workers end, its lease moves, only a new token lets it in again", box_revoked, pool)
    with pool_kit.Manager() as pool:
        here = story_host.Here(pool)
        record.part("a host: its slots are unplugged, its leases end", host_revoked, pool, here)


def busy(pool, credential=None):
    environment = pool.environment | {"DXPU_CREDENTIAL": credential or pool.borrower}
    client = kit.Client(pool.command([kit.program("load"), 1, 0]), environment)
    client.wait_for("working")
    return client


def made(pool, identity, by=None):
    """A credential for somebody, and the name of its token."""
    path = pool.file(f"{identity.replace('/', '-')}-{time.monotonic_ns()}.json")
    result = pool.ask("token", "create", identity, "--out", path, credential=by)
    kit.hold(result.returncode == 0, result.stderr)
    return path, re.search(r"\(token ([0-9a-f]{16})\)", result.stdout)[1]


def revoke(pool, *words):
    result = pool.ask(*words, "-o", "json")
    kit.hold(result.returncode == 0, *words, "failed:", result.stderr)
    return json.loads(result.stdout)


def is_refused(pool, credential, *words):
    result = pool.ask(*(words or ("lease", "ls")), credential=credential)
    return result.returncode == REFUSED


def ended(client):
    """A program that lost its GPU ends, and not well."""
    code = client.process.wait(kit.HANG_SECONDS)
    kit.hold(code not in (0, -signal.SIGKILL), "the program ended with", code, client.said())


def watch(pool, credential, *words):
    with open(pool.file("watch.log"), "ab") as log:
        return subprocess.Popen([kit.dxpu, *words, "--watch", "-o", "json"], env=pool.environment | {"DXPU_CREDENTIAL": credential},
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)


def tenant_token(pool):
    eve, token = made(pool, "tenant/vision/eve")
    with busy(pool, eve) as stolen, busy(pool) as honest:
        done = revoke(pool, "token", "revoke", token)
        kit.hold((done["tokens"], done["machines"], done["leases"], done["gpus"]) == (1, 0, 1, 1), done)
        ended(stolen)
        kit.hold(is_refused(pool, eve), "the token still opens something:", pool.last)
        [lease] = pool.live_leases()
        kit.hold(lease["owner"].endswith("/ada") and honest.process.poll() is None, "others are disturbed:", lease, honest.said())
        honest.process.terminate()
        honest.ends(143)
    pool.all_free()
    said = pool.ask("token", "revoke", token)
    kit.hold("ended: 0 tokens, 0 machines, 0 leases (0 GPUs)" in said.stdout, "the second time ends nothing:", said)


def admin_token(pool):
    mallory, stolen = made(pool, "admin/mallory")
    oscar, _ = made(pool, "admin/oscar", by=mallory)
    eve, _ = made(pool, "tenant/vision/eve", by=oscar)
    watching = watch(pool, oscar, "event", "ls")
    time.sleep(1)
    kit.hold(watching.poll() is None, "the watch ended by itself")
    with busy(pool, eve) as program:
        own = pool.ask("token", "revoke", stolen, credential=oscar)
        kit.hold(own.returncode == REFUSED and "the token that you ask with" in own.stderr, "it would end itself:", own)
        done = revoke(pool, "token", "revoke", stolen, "--reason", "stolen")
        kit.hold((done["tokens"], done["leases"]) == (3, 1), done)
        ended(program)
    kit.hold(watching.wait(kit.HANG_SECONDS) == REFUSED, "who watches ended with", watching.returncode)
    for credential in (mallory, oscar, eve):
        kit.hold(is_refused(pool, credential), credential, "still opens something:", pool.last)
    listed = pool.ask("token", "revoked").stdout
    kit.hold(stolen in listed and "stolen" in listed, listed)
    pool.all_free()


def operator_and_viewer(pool):
    for identity in ("operator/night", "viewer/wall"):
        one, _ = made(pool, identity)
        other, _ = made(pool, identity)
        watching = watch(pool, one, "gpu", "ls")
        time.sleep(1)
        kit.hold(watching.poll() is None, "the watch ended by itself")
        kit.hold(revoke(pool, "token", "revoke", identity)["tokens"] == 2, "both")
        kit.hold(watching.wait(kit.HANG_SECONDS) == REFUSED, identity, "goes on watching:", watching.returncode)
        kit.hold(is_refused(pool, one, "gpu", "ls") and is_refused(pool, other, "gpu", "ls"), identity, pool.last)
        again, _ = made(pool, identity)
        kit.hold(pool.ask("gpu", "ls", credential=again).returncode == 0, "what is made later counts:", pool.last)


def lease_token(pool):
    with pool.borrow("/bin/sh", "-c", "echo $DXPU_WORKER $DXPU_TOKEN_FILE; sleep 60") as client:
        client.wait_for("/tokens")
        address, path = client.said().split()[:2]
        kept = pool.file("kept-token")
        shutil.copy(path, kept)
        os.chmod(kept, 0o600)
        attach = [kit.dxpu, "run", "--worker", address, "--token-file", kept, "--", "/bin/true"]
        environment = pool.environment | {name: value for name, value in [("DXPU_CREDENTIAL", pool.borrower)]}
        [lease] = pool.live_leases()
        kit.hold(revoke(pool, "lease", "revoke", lease["id"])["leases"] == 1, "one")
        box = next(box for box in pool.boxes if box.name == lease["grants"][0]["gpu"].split("/")[0])
        trust = lambda: pool.read(f"{box.name}/trust")
        kit.until(lambda: f"its box is told: {trust()}", lambda: lease["id"] in trust(), 20)
        pool.all_free()
        os.kill(pool.manager.pid, signal.SIGSTOP)
        try:
            result = kit.run_plainly(attach, environment)
            kit.hold(result.returncode == REFUSED and "revoked" in result.stderr, "the token:", result.returncode, result.stderr)
        finally:
            os.kill(pool.manager.pid, signal.SIGCONT)
        client.process.kill()
    pool.all_free()


def box_returns(pool):
    """Its first certificate ends with the token that bought it, after seconds: as after a day, and a day off."""
    for attempt in range(6):
        invitation, state = pool.file(f"third-{attempt}.json"), pool.file(f"third-{attempt}")
        kit.hold(pool.ask("token", "create", f"box/third-{attempt}", "--ttl", "6s", "--out", invitation).returncode == 0, pool.last)
        plan = pool.file(f"third-{attempt}-plan.json")
        with open(plan, "w") as file:
            gpus = [{"model": "H200", "memory": "80GiB", "count": 1}]
            json.dump({"boxes": [{"name": f"third-{attempt}", "kind": "pcie", "join": invitation, "gpus": gpus}]}, file)
        log = pool.file(f"third-{attempt}.log")
        def start():
            with open(log, "ab") as said:
                return subprocess.Popen([kit.dxpu, "box", "--simulate", plan, "--state-dir", state], env=pool.environment,
                                        stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        kept = os.path.join(state, f"third-{attempt}", "membership.json")
        process = start()
        kit.until(lambda: f"it joins: {pool.read(log)}", lambda: os.path.exists(kept) or process.poll() is not None, 30)
        process.kill()
        process.wait()
        if not os.path.exists(kept):
            continue
        with open(kept) as file:
            membership = json.load(file)
        if membership["expires_ms"] - membership["issued_ms"] > 6000:
            continue  # It was renewed already.
        time.sleep(max(0, membership["expires_ms"] / 1000 - time.time()) + 1.5)
        process = start()
        pool.others.append(process)
        with_log = lambda: f"it comes back: {pool.read(log)}"
        kit.until(with_log, lambda: "let in again, with a new certificate" in pool.read(log), 40)
        kit.until(with_log, lambda: pool.gpus().get(f"third-{attempt}/0", {}).get("state") == "free", 40)
        kit.hold(revoke(pool, "box", "revoke", f"third-{attempt}")["machines"] == 1, "one")
        kit.hold(process.wait(kit.HANG_SECONDS) == REFUSED, pool.read(log))
        kit.hold(not os.path.exists(kept), "its key is still there")
        return
    raise kit.Wrong("no box could be killed before it had renewed its certificate")


def copied(pool):
    second = next(box for box in pool.boxes if box.name == "second")
    state = pool.file("copy")
    os.makedirs(state, mode=0o700)
    for name in ("membership.json", "key.pem", "certificate.pem"):
        shutil.copy2(second.file(name), state)
    with open(pool.file("copy.log"), "ab") as log:
        thief = subprocess.Popen([kit.dxpu, "box", "--name", "second", "--soft", "1", "--memory", "1GiB", "--state-dir", state, "--listen", "127.0.0.1"],
                                 env=pool.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    pool.others.append(thief)
    told = lambda: [event for event in pool.json("event", "ls", "--last", "1000") if event["kind"] == "identity_copied"]
    kit.until(lambda: f"operators are told: {pool.read('copy.log')}", lambda: told(), 60)
    kit.hold(told()[0]["box_name"] == "second" and "dxpu box revoke second" in told()[0]["message"], told())
    thief.send_signal(signal.SIGINT)
    thief.wait(30)
    trail = pool.ask("audit", "ls", "--json").stdout
    kit.hold("access.copied" in trail, "not in the audit trail")
    second.kill_agent()
    second.start()
    kit.until(lambda: f"all is as before: {pool.logs()}", lambda: {gpu["state"] for gpu in pool.gpus().values() if gpu["box_name"] in ("first", "second")} == {"free"}, 60)


def box_revoked(pool):
    first = next(box for box in pool.boxes if box.name == "first")
    pool.ask("box", "drain", "second")
    with busy(pool) as client:
        pool.ask("box", "undrain", "second")
        [lease] = pool.live_leases()
        kit.hold(lease["grants"][0]["gpu"] == "first/0", lease)
        workers = first.workers()
        done = revoke(pool, "box", "revoke", "first", "--reason", "stolen")
        kit.hold(done["machines"] == 1, done)
        kit.until(lambda: f"its lease moves: {pool.leases()}", lambda: lease["id"] not in pool.leases()
                  or [grant["gpu"] for grant in pool.leases()[lease["id"]]["grants"]] == ["second/0"], 20)
        kit.hold(first.process.wait(kit.HANG_SECONDS) == REFUSED, first.log()[-2000:])
        kit.hold(not any(map(kit.alive, workers)) and not first.workers(), "its workers serve on")
        ended(client)
    kit.hold("revoked by admin/first: stolen" in pool.ask("box", "ls").stdout, pool.last.stdout)
    kit.hold("no member of the pool any more" in first.log() and "dxpu token create box/NAME" in first.log(), first.log()[-2000:])
    # Neither what it has kept nor the token that it came with lets it in again.
    first.start()
    kit.hold(first.process.wait(kit.HANG_SECONDS) == REFUSED, first.log()[-2000:])
    kit.hold(pool.gpus()["first/0"]["state"] != "free" or pool.json("box", "show", "first")["box"]["state"] == "dead", pool.gpus())
    os.remove(first.invitation)
    kit.hold(pool.token("box/first", first.invitation), pool.last.stderr)
    first.start()
    is_back = lambda: "revoked" not in pool.json("box", "show", "first")["box"] and pool.gpus()["first/0"]["state"] == "free"
    kit.until(lambda: f"it is a member again: {first.log()[-2000:]}", is_back, 60)
    pool.ask("box", "drain", "second")
    pool.must("/bin/true")
    pool.ask("box", "undrain", "second")


def host_revoked(pool, here):
    pool.must("host", "allow", "hv-7", "vision")
    lease = story_host.create(pool, "--wait")
    kit.hold(story_host.is_plugged(pool, lease), "it is plugged")
    done = json.loads(pool.must("host", "revoke", "hv-7", "--reason", "decommissioned", "-o", "json"))
    kit.hold((done["machines"], done["leases"], done["gpus"]) == (1, 1, 1), done)
    kit.hold(here.processes["hv-7"].wait(kit.HANG_SECONDS) == REFUSED, pool.logs())
    kit.hold("unplugged" in pool.logs() and "decommissioned" in pool.logs(), pool.logs())
    kit.until(pool.logs, lambda: pool.json("lease", "show", lease["id"])["state"] == "ended", 30)
    pool.wait_for_gpus(2)
    kit.hold("revoked by admin/first: decommissioned" in pool.must("host", "show", "hv-7"), "the host says why")
    here.start("hv-7", "host", "--slots", "2", "--join-token-file", os.path.join(pool.directory, "host-hv-7.json"))
    kit.hold(here.processes["hv-7"].wait(kit.HANG_SECONDS) == REFUSED, pool.logs())
