"""The files in deploy/monitoring: promtool tries the alert rules, and every metric and label that rules and dashboard ask for
is one that a manager tells."""

import json
import pathlib
import re
import subprocess

MONITORING = pathlib.Path(__file__).resolve().parents[2] / "deploy/monitoring"
STATES = {
    "dxpu_gpus": {"free", "leased", "cleaning", "bad", "burn_in", "absent"},
    "dxpu_boxes": {"ready", "suspect", "dead", "draining"},
    "dxpu_hosts": {"ready", "suspect", "dead"},
    "dxpu_leases": {"pending", "granted", "releasing", "ended"},
}


def expressions():
    rules = (MONITORING / "alerts.yml").read_text()
    found = re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)
    assert len(found) >= 10, found
    board = json.loads((MONITORING / "dashboard.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(shown) >= 10, shown
    return found + shown


def told(text):
    """Each metric's name, with the labels of its samples."""
    metrics = {}
    for line in text.splitlines():
        kind = re.match(r"# TYPE (\S+) ", line)
        if kind:
            metrics.setdefault(kind[1], set())
        sample = re.match(r"([A-Za-z_]+)(?:\{(.*)\})? ", line)
        if sample and not line.startswith("#"):
            metrics.setdefault(sample[1], set()).update(re.findall(r'([A-Za-z]+)="', sample[2] or ""))
    return metrics


def test_promtool_accepts_the_rules_and_they_fire_as_their_tests_say():
    for words in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(["promtool", *words], cwd=MONITORING, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_way_to_scrape(tmp_path):
    text = (MONITORING / "prometheus.yml").read_text()
    for name in re.findall(r"/(?:etc|usr)/[\w/.-]+", text):
        if name.endswith("alerts.yml"):
            text = text.replace(name, str(MONITORING / "alerts.yml"))
        else:
            (tmp_path / pathlib.Path(name).name).write_text("")
            text = text.replace(name, str(tmp_path / pathlib.Path(name).name))
    (tmp_path / "prometheus.yml").write_text(text)
    done = subprocess.run(["promtool", "check", "config", "--lint=none", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_rules_and_dashboard_ask_for_is_told_by_a_manager(pool):
    assert pool.ask("POST", "/v1/leases", json={"tenant": "vision"}).status_code == 201
    metrics = told(pool.ask("GET", "/metrics").text)
    for expression in expressions():
        bare = re.sub(r'"[^"]*"', '""', expression)
        names = re.findall(r"\b(?:dxpu|DCGM)_\w+", bare)
        assert names or "up{" in bare, expression
        for name in names:
            assert name in metrics, f"{name} in {expression}"
        for name, inside in re.findall(r"\b((?:dxpu|DCGM)_\w+)\{([^}]*)\}", expression):
            for label, value in re.findall(r'(\w+)[=!]~?"([^"]*)"', inside):
                # No host is in this pool, so its labels are not told.
                assert label in metrics[name] or not metrics[name], f"{label} of {name} in {expression}"
                if label == "state":
                    assert set(value.split("|")) <= STATES[name], expression
        for group in re.findall(r"by \(([\w, ]+)\)", expression):
            for label in group.split(", "):
                known = {"le", "instance"}.union(*(metrics[name] for name in names))
                assert label in known, f"{label} in {expression}"


def test_the_dashboard_has_no_panel_over_another():
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    places = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for cell in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert cell not in places, panel["title"]
            places.add(cell)
    assert len({panel["id"] for panel in panels}) == len(panels)
