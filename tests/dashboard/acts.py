"""What can be done at the page, by mouse and keys, and what must not work."""
import json
import os
import ssl
import urllib.error
import urllib.request

import kit
from hands import DESK, click, focused, key, log_in, log_out, resize, write


def problem(page, *words):
    page.until("document.getElementById('login-problem').innerText !== ''")
    text = page.run("document.getElementById('login-problem').innerText")
    for word in words:
        kit.hold(word in text, word, "is not in", text)
    return text


def try_token(page, token):
    page.run(f"document.getElementById('login-token').value = {json.dumps(token)}")
    click(page, "#login-button")


def token_in(path):
    with open(path) as file:
        return json.load(file)["token"]


def login(pool, page, eye):
    log_out(page)
    unknown = "dxpu-user.0011223344556677." + "A" * 43
    join = token_in(pool.credential("box/rack9-a"))
    gone = token_in(pool.credential("viewer/gone"))
    pool.must("token", "revoke", "viewer/gone", "--reason", "laptop stolen")
    told = set()
    for token, words in (
        ("", ["Choose a credential file"]),
        ("dxpu-nonsense", ["not a token of dxpu"]),
        (unknown, ["is not known", "copied whole"]),
        (join, ["join token", "dxpu token create viewer/NAME"]),
        (gone, ["was revoked", "laptop stolen", "Ask an admin"]),
    ):
        try_token(page, token)
        page.until(f"document.getElementById('login-problem').innerText.includes({json.dumps(words[0])})")
        told.add(problem(page, *words))
    kit.hold(len(told) == 5, told)
    file = os.path.join(pool.directory, "note.json")
    with open(file, "w") as note:
        note.write("{ not json")
    page.run("document.getElementById('login-token').value = ''")
    page.choose_file("#login-file", file)
    click(page, "#login-button")
    page.until("document.getElementById('login-problem').innerText.includes('not a credential')")
    eye.look("login")
    for _ in range(10):
        page.run("fetch('/v1/session', { method: 'POST', headers: { authorization: 'Bearer dxpu-nonsense' } }).then((answer) => answer.status)")
    # One that looks like a token: the page itself refuses others.
    try_token(page, unknown)
    page.until("document.getElementById('login-problem').innerText.includes('Too many logins')")
    problem(page, "Wait")
    kit.hold(pool.json("whoami")["role"] == "admin", "programs log in all the same")
    # The browser notes each refusal, which was meant to be.
    page.complaints[:] = [text for text in page.complaints if "/v1/session" not in text]


def viewer(page):
    click(page, ".slot[data-gpu=leased]")
    page.until("document.getElementById('detail').open")
    text = page.run("document.getElementById('detail').innerText")
    kit.hold("logged in as viewer" in text and "operator or an admin" in text, text)
    kit.hold(page.run("document.querySelectorAll('[data-do=act]').length") == 0, "a button for what a viewer may not")
    key(page, "Escape")
    page.until("!document.getElementById('detail').open")
    kit.hold(page.run("document.querySelectorAll('main img, main script').length") == 0, "a tenant's text became elements")


def search(page):
    click(page, "#filter")
    write(page, "pretraining")
    page.until("document.querySelectorAll('#leases tbody tr').length === 1")
    page.until("document.getElementById('boxes').innerText.includes('Show all')")
    click(page, "[data-do=clear-filter]")
    page.until("document.querySelectorAll('#leases tbody tr').length === 3")
    write(page, "rack2 search")
    page.until("document.querySelectorAll('.box').length >= 1 && [...document.querySelectorAll('.box .link')].every((box) => box.textContent.startsWith('rack2'))")
    page.until("document.querySelectorAll('#leases tbody tr').length === 1")
    page.run("document.getElementById('filter').value = ''; document.getElementById('filter').dispatchEvent(new Event('input'))")
    page.until("document.querySelectorAll('.box').length === 5")


def keyboard(pool, page):
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    key(page, "/")
    kit.hold(focused(page) == "filter", "the key / leads to", focused(page))
    lease = page.run("document.querySelector('#leases tbody .link').dataset.id")
    page.run("document.querySelector('#leases tbody .link').focus()")
    key(page, "Enter")
    page.until("document.getElementById('detail').open")
    kit.hold(focused(page) == "detail-close", focused(page))
    for _ in range(30):
        key(page, "Tab")
        inside = page.run("document.activeElement === document.body || document.getElementById('detail').contains(document.activeElement)")
        kit.hold(inside, "Tab leaves the dialog for", focused(page))
    key(page, "Escape")
    page.until("!document.getElementById('detail').open")
    kit.hold(focused(page) == lease, "after the dialog the focus is at", focused(page), "not at", lease)
    key(page, "Enter")
    page.until("document.getElementById('detail').open")
    # The browser tells of the end of a dialog later; the focus is elsewhere by then, and stays there.
    page.run("""new Promise((told) => {
        const dialog = document.getElementById('detail');
        dialog.addEventListener('close', () => setTimeout(told), { once: true });
        dialog.close();
        document.querySelector('#chart-gpus svg').focus();
    })""")
    kit.hold(page.run("document.activeElement.dataset.chart") == "chart-gpus", "the end of the dialog took the focus to", focused(page))
    key(page, "ArrowLeft")
    page.until("document.querySelector('#chart-gpus .when').textContent !== 'now'")
    kit.hold(page.run("document.activeElement.dataset.chart") == "chart-gpus", "the chart keeps the focus")
    key(page, "Escape")
    page.until("document.querySelector('#chart-gpus .when').textContent === 'now'")


def steady(pool, page):
    """A lease comes while one is looked at: focus, the element itself and what is seen beside it stay where they are."""
    page.run("""(() => {
        const row = document.querySelectorAll('#leases tbody .link')[1];
        row.focus({ preventScroll: true });
        window.scrollTo(0, 300);
        window.place = () => document.querySelector('.box').getBoundingClientRect().top;
        window.before = { row, id: row.dataset.id, events: document.querySelector('#events li'), place: place() };
    })()""")
    count = page.run("document.querySelectorAll('#leases tbody tr').length")
    made = pool.must("lease", "create", "--tenant", "search", "--gpus", "1", "--model", "L40S", "--ttl", "1h", "--note", "just now").split()[0]
    page.until(f"document.querySelectorAll('#leases tbody tr').length === {count + 1}")
    now = page.run("({ same: document.activeElement === before.row && before.row.dataset.id === before.id, moved: Math.round(place() - before.place), event: before.events.isConnected })")
    kit.hold(now == {"same": True, "moved": 0, "event": True}, now)
    lease = next(lease for lease in pool.json("lease", "ls") if lease["request"].get("note") == "just now")
    pool.must("lease", "release", lease["id"])
    page.until(f"document.querySelectorAll('#leases tbody tr').length === {count}")
    kit.hold(page.run("document.activeElement === before.row"), "a row that went took the focus with it")
    return made and ""


def confirm(page, action, reason=None):
    click(page, f"#detail [data-action={action}]")
    page.until("document.getElementById('confirm').open")
    if reason:
        write(page, reason)
    click(page, "#confirm-yes")
    page.until("!document.getElementById('confirm').open")


def box(pool, name):
    return next(box for box in pool.json("box", "ls") if box["name"] == name)


def operate(pool, page, operator):
    log_out(page)
    log_in(page, pool, operator)
    page.until("document.querySelectorAll('.box').length === 5")
    click(page, ".box[data-key=rack2-b] .title .link")
    # Asked, and not done.
    click(page, "#detail [data-action=box-drain]")
    page.until("document.getElementById('confirm').open")
    text = page.run("document.getElementById('confirm').innerText")
    kit.hold("Drain box rack2-b?" in text and "move to other GPUs" in text, text)
    click(page, "#confirm-no")
    page.until("!document.getElementById('confirm').open")
    kit.hold(focused(page) == "rack2-b", focused(page))
    kit.hold("drain" not in box(pool, "rack2-b"), "it was drained without a yes")
    confirm(page, "box-cordon", "a fan is loud")
    page.until("document.getElementById('detail').innerText.includes('a fan is loud')")
    kit.hold(box(pool, "rack2-b")["drain"]["reason"] == "a fan is loud" and not box(pool, "rack2-b")["drain"]["drain"], box(pool, "rack2-b"))
    confirm(page, "box-uncordon")
    page.until("document.querySelector('#detail [data-action=box-cordon]')")
    kit.hold("drain" not in box(pool, "rack2-b"), box(pool, "rack2-b"))
    confirm(page, "box-drain", "new firmware")
    page.until("document.querySelector('#detail [data-action=box-uncordon]')")
    kit.hold(box(pool, "rack2-b")["drain"]["drain"], box(pool, "rack2-b"))
    confirm(page, "box-uncordon")
    page.until("document.querySelector('#detail [data-action=box-drain]')")
    click(page, "#detail-close")
    pool.must("gpu", "break", "rack2-b/3", "--reason", "to see")
    page.until("document.querySelector('.slot[data-id=\"rack2-b/3\"]').dataset.gpu === 'bad'")
    click(page, '.slot[data-id="rack2-b/3"]')
    confirm(page, "gpu-repair")
    kit.until(lambda: pool.json("gpu", "show", "rack2-b/3"), lambda: pool.json("gpu", "show", "rack2-b/3")["state"] in ("free", "burn_in"))
    confirm(page, "gpu-cordon", "for the night")
    page.until("document.getElementById('detail').innerText.includes('for the night')")
    confirm(page, "gpu-uncordon")
    page.until("document.querySelector('#detail [data-action=gpu-cordon]')")
    click(page, "#detail-close")
    # What an operator may not.
    click(page, "#leases tbody .link")
    page.until("document.getElementById('detail').innerText.includes('own tenant or an admin')")
    click(page, "#detail-close")
    trail = pool.must("audit", "ls", "-o", "json")
    kit.hold("operator/night" in trail and "box.cordon" in trail, "it is not in the audit trail:", trail[-2000:])


def release(pool, page, admin, eye):
    """The lease has a GPU of the real box."""
    resize(page, DESK)
    log_out(page)
    log_in(page, pool, admin)
    model = pool.json("gpu", "show", "soft-1/0")["model"]
    pool.must("lease", "create", "--tenant", "vision", "--gpus", "1", "--model", model, "--ttl", "1h", "--note", "on a soft one")
    lease = next(lease for lease in pool.json("lease", "ls") if lease["request"].get("note") == "on a soft one")
    gpu = lease["grants"][0]["gpu"]
    click(page, f"#leases [data-id={lease['id']}]")
    page.until("document.querySelector('#detail [data-action=lease-release]')")
    click(page, "#detail [data-action=lease-release]")
    page.until("document.getElementById('confirm').open")
    eye.look("confirm")
    click(page, "#confirm-yes")
    page.until("document.getElementById('toast').innerText.includes('is released')")
    click(page, "#detail-close")
    page.until(f"!document.querySelector('#leases [data-id={lease['id']}]')", 30)
    shown = lambda: pool.json("gpu", "show", gpu)
    kit.until(shown, lambda: shown()["state"] == "free" and shown()["cleaned_epoch"] == shown()["epoch"], 30)
    return gpu


def forged(pool, page):
    """Another page in the browser of an admin that is logged in, and a program that has stolen the cookie alone."""
    lease = pool.json("lease", "ls")[0]["id"]
    page.send("Network.enable")
    cookies = page.send("Network.getCookies", urls=[pool.address])["cookies"]
    cookie = next(cookie for cookie in cookies if cookie["name"] == "__Host-dxpu")
    kit.hold(cookie["httpOnly"] and cookie["secure"] and cookie["sameSite"] == "Strict", cookie)
    kit.hold(page.run("document.cookie") == "", "a script reads the cookie")

    around = ssl.create_default_context(cadata=pool.authority())

    def forge(**headers):
        request = urllib.request.Request(f"{pool.address}/v1/leases/{lease}", method="DELETE",
            headers={"Cookie": f"__Host-dxpu={cookie['value']}"} | {name.replace("_", "-"): value for name, value in headers.items()})
        try:
            with urllib.request.urlopen(request, context=around, timeout=10) as answer:
                return answer.status, ""
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    for headers in ({}, {"Origin": "https://evil.example"}, {"Origin": pool.address}, {"Origin": pool.address, "X_Dxpu_Csrf": "0" * 64}):
        status, text = forge(**headers)
        kit.hold(status == 403 and "did not come from the dashboard" in text, headers, status, text)
    # The page itself, without its token: what a script of another page would send if it could send the cookie.
    status = page.run(f"fetch('/v1/leases/{lease}', {{ method: 'DELETE' }}).then((answer) => answer.status)")
    kit.hold(status == 403, status)
    # A page of another origin in the same browser: the cookie does not go along, and nothing is answered to it.
    page.open("data:text/html,<title>evil</title>")
    outcome = page.run(f"fetch('{pool.address}/v1/leases/{lease}', {{ method: 'DELETE', credentials: 'include' }}).then((answer) => answer.status, (error) => error.name)")
    kit.hold(outcome == "TypeError", outcome)
    kit.hold(next(one for one in pool.json("lease", "ls") if one["id"] == lease)["state"] in ("granted", "pending"), "the lease is gone")
    page.complaints[:] = [text for text in page.complaints if lease not in text]


def tenant(pool, page, eye):
    ada = pool.credential("tenant/vision/ada")
    resize(page, DESK)
    page.open(pool.address + "/")
    page.until("!document.getElementById('pool').hidden || !document.getElementById('login').hidden")
    log_out(page)
    log_in(page, pool, ada)
    page.until("document.querySelectorAll('#leases tbody tr').length === 2")
    text = page.text()
    kit.hold("You could get" in text and "vision" in text, text)
    kit.hold("search" not in page.run("document.getElementById('leases').innerText") and "research" not in text, "another tenant's is shown")
    page.run("(() => { const t = document.getElementById('tenant'); t.value = 'vision'; t.dispatchEvent(new Event('change')) })()")
    page.until("document.querySelectorAll('#chart-use path.line').length === 2")
    eye.look("tenant")
    lease = page.run("document.querySelector('#leases tbody tr:last-child .link').dataset.id")
    click(page, f"#leases [data-id={lease}]")
    confirm(page, "lease-release")
    page.until(f"!document.querySelector('#leases [data-id={lease}]')", 30)
    # Asking for what is not its own is refused and noted by the browser.
    page.complaints[:] = [text for text in page.complaints if "403" not in text]
    page.run("document.querySelectorAll('dialog[open]').forEach((dialog) => dialog.close())")
    log_out(page)
