"""A person at the page: presses the mouse where something is, types, uses the keys."""
import json

import kit

PHONE = {"width": 390, "height": 844}
DESK = {"width": 1440, "height": 1000}


def click(page, selector):
    """Presses the middle of an element, which must be what is seen there."""
    page.until(f"document.querySelector({json.dumps(selector)})")
    # Twice the same place: a list that is being drawn moves.
    spot = None
    def is_still():
        nonlocal spot
        now = page.run(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            const {{ x, y, width, height }} = element.getBoundingClientRect();
            const at = [x + width / 2, y + height / 2];
            const top = document.elementFromPoint(...at);
            return top && (element.contains(top) || top.contains(element)) ? at : null;
        }})()""")
        is_same = now is not None and now == spot
        spot = now
        return is_same
    kit.until(lambda: f"{selector} is covered or moves: {page.text()[-600:]}", is_still, 60)
    for kind in ("mousePressed", "mouseReleased"):
        page.send("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)


def write(page, text):
    page.send("Input.insertText", text=text)


KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "/": 191, " ": 32}


def key(page, name, shift=False):
    text = {"Enter": "\r", "/": "/", " ": " "}.get(name)
    common = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": 8 if shift else 0}
    page.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
    page.send("Input.dispatchKeyEvent", type="keyUp", **common)


def focused(page):
    """What has the focus, by what a person would call it."""
    return page.run("(() => { const e = document.activeElement; return e.id || e.dataset.id || e.textContent.trim().slice(0, 60) || e.nodeName })()")


def resize(page, size):
    page.send("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=size["width"] < 600)


def log_in(page, pool, credential):
    page.open(pool.address + "/")
    page.until("!document.getElementById('login').hidden")
    page.choose_file("#login-file", credential)
    click(page, "#login-button")
    page.until("!document.getElementById('pool').hidden && document.getElementById('standing').innerText === 'live'", 30)


def log_out(page):
    if page.run("!document.getElementById('leave').hidden"):
        page.run("document.querySelectorAll('dialog[open]').forEach((dialog) => dialog.close())")
        click(page, "#leave")
        page.until("!document.getElementById('login').hidden && document.getElementById('pool').hidden")
