"""What the dashboard must show and do, and how it must look, in the order a person would try it."""
import os
import re

import acts
import browser
import kit
import looks
import pool_kit
import seed
from hands import DESK, log_in, resize

AXE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node_modules", "axe-core", "axe.min.js")

BOXES = [
    {"name": "rack1-a", "kind": "nvlink", "rack": "r1", "gpus": [{"model": "H200", "memory": "141GiB", "count": 8, "nvlink_group": 0}]},
    {"name": "rack1-b", "kind": "nvlink", "rack": "r1", "gpus": [{"model": "H200", "memory": "141GiB", "count": 8, "nvlink_group": 0}]},
    {"name": "rack2-a", "kind": "pcie", "rack": "r2", "gpus": [{"model": "L40S", "memory": "48GiB", "count": 4}]},
    {"name": "rack2-b", "kind": "pcie", "rack": "r2", "gpus": [{"model": "L40S", "memory": "48GiB", "count": 4}]},
]
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def tell(record, pictures):
    with pool_kit.Manager() as pool, browser.Browser(**DESK) as page:
        eye = looks.Eye(page, pictures, AXE)
        record.part("an empty pool says what to do", empty, pool, page, eye)
        record.part("the login says what is wrong, and a token that is gone is told apart from a wrong one", acts.login, pool, page, eye)
        pool.stop_manager()
        steps = seed.a_day(os.path.dirname(pool.admin))
        pool.start_manager()
        furnish(pool)
        operator, admin = pool.credential("operator/night"), pool.admin
        record.part("a day of history is there after a restart", history, pool, page, pool.credential("viewer/wall"), steps)
        record.part("every view keeps the rules of WCAG AA, in both themes and on a phone", looks.all_views, pool, page, eye)
        record.part("a viewer is offered nothing that it may not do", acts.viewer, page)
        record.part("one search finds leases, boxes and events", acts.search, page)
        record.part("the keyboard reaches everything, and what has the focus keeps it", acts.keyboard, pool, page)
        record.part("live updates move nothing under the reader", acts.steady, pool, page)
        record.part("an operator cordons, uncordons, drains and repairs by mouse, after a question", acts.operate, pool, page, operator)
        record.part("an admin releases a lease on a real soft GPU, which comes back clean", acts.release, pool, page, admin, eye)
        record.part("a forged request changes nothing", acts.forged, pool, page)
        record.part("a tenant sees its own", acts.tenant, pool, page, eye)
        record.part("the page comes with a strict policy and nothing else is served", policy, pool)
        record.part("a GPU that breaks is seen at once, a manager that is gone is told and found again", gone, pool, page, pool.credential("viewer/last"))
        record.part("nothing was complained of", quiet, page)


def empty(pool, page, eye):
    log_in(page, pool, pool.credential("viewer/first"))
    text = page.text()
    for word in ("dxpu token create box/NAME", "dxpu box --join-token-file", "dxpu run --gpus 1", "Nobody waits"):
        kit.hold(word in text, word, "is not on the page:", text)
    eye.look("empty")


def furnish(pool):
    """Boxes that pretend, a real one with soft GPUs, leases that have and leases that wait."""
    pool.simulate(BOXES)
    soft = pool.credential("box/soft-1")
    pool.boxes.append(pool._start("box", "--join-token-file", soft, "--soft", "2", "--rack", "r3", "--state-dir", os.path.join(pool.directory, "soft-1")))
    pool.wait_for_gpus(26)
    pool.must("spare", "set", "H200", "1")
    pool.must("lease", "create", "--tenant", "vision", "--gpus", "8", "--topology", "nvlink", "--ttl", "1h", "--note", "pretraining of the large one")
    pool.must("lease", "create", "--tenant", "search", "--gpus", "2", "--model", "L40S", "--ttl", "1h", "--note", HOSTILE)
    pool.must("lease", "create", "--tenant", "vision", "--gpus", "3", "--model", "H200", "--ttl", "1h")
    pool.must("lease", "create", "--tenant", "research", "--gpus", "16", "--model", "H200", "--ttl", "1h", "--note", "evaluation")


def history(pool, page, viewer, steps):
    resize(page, DESK)
    log_in(page, pool, viewer)
    # Simulated GPUs do not tell the activity of multiprocessors; those of the day before did.
    page.until("document.querySelectorAll('#chart-use path.line').length === 3 && document.querySelector('#chart-use .key.sm')")
    page.run("document.querySelector('[data-span=day]').click()")
    page.until(f"Number(document.querySelector('#chart-gpus svg').dataset.points) >= {steps - 2}")
    page.until("document.querySelectorAll('#chart-queue .key').length >= 3")
    page.until("[...document.querySelectorAll('#tenant option')].some((option) => option.value === 'vision')")
    page.run("(() => { const t = document.getElementById('tenant'); t.value = 'vision'; t.dispatchEvent(new Event('change')) })()")
    page.until("document.querySelectorAll('#chart-gpus path.line').length === 1")
    page.run("(() => { const t = document.getElementById('tenant'); t.value = ''; t.dispatchEvent(new Event('change')) })()")
    page.until("document.querySelectorAll('#chart-gpus path.line').length === 3")
    return f"{steps} steps of two minutes"


def policy(pool):
    status, headers, body = pool.fetch("/")
    kit.hold(status == 200 and "dxpu" in body, status)
    told = headers["content-security-policy"]
    for rule in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"):
        kit.hold(rule in told, rule, "is not in", told)
    kit.hold("unsafe" not in told, told)
    for name in re.findall(r'"/dashboard/([^"]+)"', body):
        status, headers, _ = pool.fetch(f"/dashboard/{name}")
        kit.hold(status == 200 and headers["x-content-type-options"] == "nosniff", name, status)
    kit.hold(pool.fetch("/dashboard/../Cargo.toml")[0] == 404 and pool.fetch("/dashboard/none.js")[0] == 404, "other files")


def gone(pool, page, viewer):
    log_in(page, pool, viewer)
    lease = next(lease for lease in pool.json("lease", "ls") if lease["tenant"] == "search")
    gpu = lease["grants"][0]["gpu"]
    page.until(f"document.querySelector('.slot[data-id=\"{gpu}\"]')")
    pool.must("gpu", "break", gpu, "--reason", HOSTILE)
    page.until(f"document.querySelector('.slot[data-id=\"{gpu}\"]').dataset.gpu === 'bad'")
    page.until("document.getElementById('leases').innerText.includes('moved from')")
    page.until("document.getElementById('events').innerText.includes('<img src=x')")
    kit.hold(page.run("document.querySelectorAll('main img, main script').length") == 0, "text became elements")
    pool.stop_manager()
    page.until("document.getElementById('standing').dataset.state === 'trouble'", 20)
    pool.start_manager()
    page.until("document.getElementById('standing').innerText === 'live'", 30)
    page.complaints[:] = [text for text in page.complaints if "ERR_" not in text and "503" not in text]


def quiet(page):
    # The browser notes each 401: a page that asks whether anybody is logged in gets one, and questions that were under way when
    # somebody logged out do. A page that may not ask what it asks would not show what the other checks look for.
    left = [text for text in page.complaints if "/v1/session" not in text and "status of 401" not in text]
    kit.hold(left == [], *left)
