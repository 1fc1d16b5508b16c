"""How the page looks: pictures of every view, judged by axe-core, in both themes, on a desk and on a phone."""
import os

import kit
from hands import DESK, PHONE, click, resize

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]


class Eye:
    def __init__(self, page, directory, axe):
        self.page, self.directory = page, directory
        with open(axe) as file:
            self.axe = file.read()
        self.seen = 0

    def look(self, name):
        """Looks at what is shown, in both themes and both sizes."""
        for size_name, size in (("desk", DESK), ("phone", PHONE)):
            resize(self.page, size)
            for theme in ("light", "dark"):
                self.page.theme(theme)
                self._look_once(f"{name}-{size_name}-{theme}", size)
        resize(self.page, DESK)
        self.page.theme("light")

    def _look_once(self, name, size):
        page = self.page
        # Colours fade into each other for a moment.
        page.run("Promise.all(document.getAnimations().map((animation) => animation.finished.catch(() => null)))")
        page.screenshot(os.path.join(self.directory, f"{name}.png"))
        wide = page.run("document.documentElement.scrollWidth")
        kit.hold(wide <= size["width"], name, "is", wide, "wide, the screen", size["width"])
        cut = page.run("""[...document.querySelectorAll("td, dd, .badge, .tile, button, h2, h3, figcaption span")]
            .filter((element) => element.offsetParent !== null && element.getBoundingClientRect().right > innerWidth + 1
                && !(element.closest(".scroll")?.scrollWidth > element.closest(".scroll")?.clientWidth && innerWidth > 600))
            .map((element) => element.textContent.slice(0, 40))""")
        kit.hold(cut == [], name, "cuts", cut)
        # A script of the page could not: its policy lets none in.
        page.send("Runtime.evaluate", expression=f"if (!window.axe) {{ {self.axe} }}")
        found = page.run(f"""axe.run(document, {{ runOnly: {RULES}, resultTypes: ["violations"] }}).then(({{ violations }}) =>
            violations.map(({{ id, help, nodes }}) => `${{id}} (${{help}}): ${{nodes.slice(0, 4).map((node) => `${{node.target}} ${{node.any[0]?.message ?? ""}}`).join("; ")}}`))""")
        kit.hold(found == [], name, "breaks", "\n".join(found))
        self.seen += 1


def all_views(pool, page, eye):
    page.run("document.querySelector('[data-span=day]').click()")
    page.until("document.querySelectorAll('.waiting').length === 1 && document.querySelectorAll('#leases tbody tr').length === 3")
    eye.look("pool")
    for kind, selector in (("lease", "#leases tbody tr .link"), ("box", ".box .title .link"), ("gpu", ".slot[data-gpu=leased]")):
        click(page, selector)
        page.until("document.getElementById('detail').open && document.querySelectorAll('#detail-body dt').length > 4")
        eye.look(kind)
        click(page, "#detail-close")
        page.until("!document.getElementById('detail').open")
    page.run("document.getElementById('filter').value = 'nothing like this'; document.getElementById('filter').dispatchEvent(new Event('input'))")
    page.until("document.getElementById('leases').innerText.includes('Show all')")
    eye.look("nothing-found")
    click(page, "[data-do=clear-filter]")
    return f"{eye.seen} pictures judged"
