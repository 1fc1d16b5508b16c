"""The dashboard in a real browser, in front of a real manager with simulated boxes: what it shows, live, in both themes.

DXPU_SCREENSHOTS=DIR keeps the pictures.
"""
import os
import re

import browser
import kit
import pool_kit

BOXES = [
    {"name": "rack1-a", "kind": "nvlink", "rack": "r1", "gpus": [{"model": "H200", "memory": "141GiB", "count": 8, "nvlink_group": 0}]},
    {"name": "rack1-b", "kind": "nvlink", "rack": "r1", "gpus": [{"model": "H200", "memory": "141GiB", "count": 8, "nvlink_group": 0}]},
    {"name": "rack2-a", "kind": "pcie", "rack": "r2", "gpus": [{"model": "L40S", "memory": "48GiB", "count": 4}]},
    {"name": "rack2-b", "kind": "pcie", "rack": "r2", "gpus": [{"model": "L40S", "memory": "48GiB", "count": 4}]},
]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def tell(record):
    if browser.program() is None:
        record.part("a browser", lambda: kit.hold(False, "there is no Chromium on this machine: scripts/setup installs it"))
        return
    with pool_kit.Manager() as pool:
        pool.simulate(BOXES)
        pool.wait_for_gpus(24)
        viewer = pool.credential("viewer/wall")
        with browser.Browser() as page:
            record.part("the page comes with a strict policy", policy, pool)
            record.part("a wrong token is refused, and a credential file logs in", log_in, pool, page, viewer)
            record.part("boxes, slots and leases are shown", shows, pool, page)
            record.part("a lease that waits says why", queue, pool, page)
            record.part("a GPU that breaks is seen at once, and what a tenant wrote stays text", live, pool, page)
            record.part("one GPU in detail", detail, page)
            record.part("light, dark and narrow", pictures, page)
            record.part("a manager that is gone is told, and found again", gone, pool, page)
            record.part("nothing was complained of, and logging out forgets", leave, page)


def policy(pool):
    status, headers, body = pool.fetch("/")
    kit.hold(status == 200 and "dxpu" in body, status)
    told = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
        kit.hold(rule in told, rule, "is not in", told)
    kit.hold("unsafe" not in told, told)
    for name in re.findall(r'"/dashboard/([^"]+)"', body):
        status, headers, _ = pool.fetch(f"/dashboard/{name}")
        kit.hold(status == 200 and headers["x-content-type-options"] == "nosniff", name, status)
    kit.hold(pool.fetch("/dashboard/../Cargo.toml")[0] == 404 and pool.fetch("/dashboard/none.js")[0] == 404, "other files")


def log_in(pool, page, viewer):
    page.open(pool.address + "/")
    page.until("!document.getElementById('login').hidden")
    page.run("document.getElementById('login-token').value = 'dxpu-nonsense'")
    page.run("document.getElementById('login-form').requestSubmit()")
    page.until("document.getElementById('login-problem').innerText !== ''")
    page.complaints.clear()  # the browser notes the 401 that was meant to be
    page.screenshot(picture("login"))
    page.run("document.getElementById('login-token').value = ''")
    page.choose_file("#login-file", viewer)
    page.run("document.getElementById('login-form').requestSubmit()")
    page.until("!document.getElementById('pool').hidden && document.querySelectorAll('.slot').length === 24")
    page.until("document.getElementById('standing').innerText === 'live'")
    kit.hold("wall (viewer)" in page.text(), page.text())


def shows(pool, page):
    pool.must("spare", "set", "H200", "1")
    pool.must("lease", "create", "--tenant", "vision", "--gpus", "8", "--topology", "nvlink", "--ttl", "1h", "--note", "pretraining")
    pool.must("lease", "create", "--tenant", "search", "--gpus", "1", "--model", "L40S", "--ttl", "1h")
    page.until("document.querySelectorAll('.slot[data-gpu=leased]').length === 9", 5)
    page.until("document.querySelectorAll('.slot[data-spare=true]').length === 1", 5)
    text = page.text()
    for word in ("rack1-a", "rack2-b", "rack r1", "NVLink", "PCIe", "vision", "search", "pretraining", "Lease granted", "Box joined"):
        kit.hold(word in text, word, "is not on the page:", text)
    tiles = page.run("[...document.querySelectorAll('.tile')].map((tile) => tile.innerText.replace(/\\s+/g, ' ').trim())")
    for tile in ("Boxes 4 of 4 ready", "GPUs 24", "Leased 9", "Spares 1 held back", "Bad 0"):
        kit.hold(tile in tiles, tile, "is not among", tiles)


def queue(pool, page):
    pool.must("lease", "create", "--tenant", "research", "--gpus", "16", "--model", "H200", "--ttl", "1h", "--note", HOSTILE)
    page.until("document.querySelectorAll('.waiting').length === 1", 5)
    page.until("document.querySelectorAll('.waiting li').length >= 2", 5)
    text = page.run("document.getElementById('queue').innerText")
    kit.hold("research" in text and "wants 16 GPUs of model H200" in text, text)


def live(pool, page):
    lease = next(lease for lease in pool.json("lease", "ls") if lease["tenant"] == "search")
    gpu = lease["grants"][0]["gpu"]
    pool.must("gpu", "break", gpu, "--reason", HOSTILE)
    took = page.until(f"document.querySelector('.slot[data-id=\"{gpu}\"]').dataset.gpu === 'bad'", 5)
    page.until("document.getElementById('leases').innerText.includes('moved from')", 5)
    page.until("document.getElementById('events').innerText.includes('<img src=x')", 5)
    kit.hold(page.run("document.querySelectorAll('main img, main script').length") == 0, "text became elements")
    return f"seen after {took * 1000:.0f} ms"


def detail(page):
    page.run("document.querySelector('.slot[data-gpu=leased]').click()")
    page.until("!document.getElementById('detail').hidden")
    text = page.run("document.getElementById('detail').innerText")
    for word in ("GPU rack", "leased", "141 GiB", "l-", "vision"):
        kit.hold(word in text, word, "is not in", text)


def pictures(page):
    seen = {}
    for theme in ("light", "dark"):
        page.theme(theme)
        seen[theme] = page.run("getComputedStyle(document.body).backgroundColor")
        page.screenshot(picture(theme))
    kit.hold(seen["light"] != seen["dark"], seen)
    page.run("document.getElementById('theme').click()")
    kit.hold(page.run("getComputedStyle(document.body).backgroundColor") == seen["light"], "the button chooses light")
    page.run("document.getElementById('theme').click(); document.getElementById('theme').click()")
    page.send("Emulation.setDeviceMetricsOverride", width=420, height=900, deviceScaleFactor=1, mobile=False)
    wide = page.run("document.documentElement.scrollWidth")
    page.screenshot(picture("narrow"))
    page.send("Emulation.setDeviceMetricsOverride", width=1440, height=1000, deviceScaleFactor=1, mobile=False)
    kit.hold(wide <= 420, "the narrow page is", wide, "wide")


def gone(pool, page):
    pool.stop_manager()
    page.until("document.getElementById('standing').dataset.state === 'trouble'", 20)
    pool.start_manager()
    page.until("document.getElementById('standing').innerText === 'live'", 30)
    page.complaints[:] = [text for text in page.complaints if "ERR_" not in text and "503" not in text]


def leave(page):
    kit.hold(page.complaints == [], *page.complaints)
    page.run("document.getElementById('leave').click()")
    page.until("!document.getElementById('login').hidden && document.getElementById('pool').hidden")
    kit.hold(page.run("sessionStorage.length") == 0, "the token is still there")


def picture(name):
    directory = os.environ.get("DXPU_SCREENSHOTS") or os.path.join(kit.scratch, "screenshots")
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, f"dashboard-{name}.png")
