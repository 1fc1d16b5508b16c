"""Rows of bench/gpu/share.py as text: one line as it comes, and a Markdown page. Pure."""

from share_sides import SIDES

NOTE = (
    "Latency counts from the arrival. A load of 0.5 means that requests would keep the online program busy half of the time if it "
    "were alone; all sides have the same arrivals. *Of alone*: p99 and steps a second as shares of what the same program had alone "
    "in this run (natively for MPS, dedicated through dxpu otherwise). *Right*: every answer of the online program had the bits of "
    "its first one, and so had the offline program's product; trainings are compared in a table of their own. While the pair of "
    "one side is measured, the programs of the other sides have contexts too, and do nothing."
)


def ms(us):
    return "-" if us is None else f"{us / 1e3:.2f}" if us < 1e5 else f"{us / 1e3:.0f}"


def number(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


def said(value):
    return {None: "", True: "yes", False: "**NO**"}[value]


def line(row):
    """For the terminal."""
    words = [f"{row['row']:13} {row.get('side', ''):7} {row.get('request', ''):6} {row.get('work', ''):7}"]
    words.append(f"load {row['load']:.1f}" if "load" in row else " " * 8)
    if "error" in row:
        return " ".join([*words, f"FAILED: {row['error'][:300]}"])
    if online := row.get("online"):
        times = "/".join(ms(online[name]) for name in ("p50_us", "p90_us", "p99_us", "longest_us"))
        wrong = "" if online["right"] else " WRONG"
        behind = " falls behind" if online["falls_behind"] else ""
        words.append(f"online {times} ms of {online['requests']}, p99 {number(online.get('p99_of_alone'))} of alone{behind}{wrong}")
    if offline := row.get("offline"):
        wrong = " WRONG" if offline["right"] is False else ""
        words.append(f"offline {offline['per_second']:.2f}/s = {number(offline['of_alone'], 3)}{wrong}")
    if row["row"] == "verify":
        varies = ", but it varies alone" if row["varies_alone"] else ""
        words.append(f"{row['steps']} steps: {'the same bits' if row['right'] else 'OTHER BITS'}{varies}")
    if row["row"] == "pauses":
        words.append(f"{row['count']} pauses: offline {number(row['first_10_ms'])} in their first 10 ms, {number(row['later'])} later")
    if row["row"] == "faults":
        words.append(
            f"{row['count']} x {row['kind']}: longest {ms(row.get('longest_us'))}, median {ms(row.get('median_longest_us'))}, "
            f"no answer for {ms(row.get('silence_us'))} ms"
        )
        words.append("; ".join(f"{count} x {text}" for text, count in row["said"]))
        words += [f"ONLINE ERROR: {error}" for error in row["online_errors"]]
    if row["row"] == "day":
        for name, whole in row["whole"].items():
            used = ", ".join(f"{what} {number(whole[what], 1)}" for what in ("utilization", "sm_active", "memory_used_gib"))
            words.append(f"\n    {name}: p99 {ms(whole['p99_us'])} ms of {whole['requests']}; {used}")
    return " ".join(words)


def page(results):
    about, rows = results["about"], [row for row in results["rows"] if "error" not in row]
    lines = [f"# Online and offline programs on one GPU: {about['gpu'] or 'a GPU in software'}, {about['date']}", ""]
    lines.append(f"Commit {about['commit']}; {about['cpu']}, {about['cores']} cores; {results['options']['seconds']:g} s a row.")
    services = ", ".join(f"{request} {us / 1e3:.2f} ms" for request, us in results["service_us"].items())
    lines += [f"A request takes, alone and dedicated: {services}. {NOTE}", ""]
    if runs := results.get("runs"):
        dates = ", ".join(run["date"] for run in runs)
        lines += [f"Joined from {len(runs)} runs ({dates}); shares *of alone* are those of each row's own run.", ""]
    sides = [*results["options"].get("sides_once", []), *results["options"]["sides"]]
    lines += ["Sides: " + "; ".join(f"*{name}*: {SIDES[name].title}" for name in sides) + ".", ""]
    lines += _offline_alone(rows)
    places = sorted({(row["request"], row["load"]) for row in rows if row["row"] in ("online alone", "both")})
    for request, load in places:
        lines += _pairs(request, load, rows)
    lines += _pages(rows) + _pauses(rows) + _verified(rows) + _faults(rows) + _days(rows) + _failed(results)
    return "\n".join(lines) + "\n"


def _offline_alone(rows):
    found = [row for row in rows if row["row"] == "offline alone"]
    if not found:
        return []
    lines = ["## Offline programs alone", "", "| work | side | steps/s | of dedicated | right |", "|---|---|--:|--:|---|"]
    base = {row["work"]: row["offline"]["per_second"] for row in found if row["side"] == "slices"}
    for row in found:
        each = row["offline"]["per_second"]
        share = each / base[row["work"]] if base.get(row["work"]) else None
        lines.append(f"| {row['work']} | {row['side']} | {each:.2f} | {number(share)} | {said(row['offline']['right'])} |")
    return [*lines, ""]


def _pairs(request, load, rows):
    head = (
        "| work | side | p50, ms | p90 | p99 | max | requests | p99 of alone | steps/s | of alone | online right | offline right |"
    )
    lines = [f"## Online `{request}`, load {load:g}", "", head, "|---|---|" + "--:|" * 8 + "---|---|"]
    mine = [row for row in rows if row.get("request") == request and row.get("load") == load]
    works = dict.fromkeys(row["work"] for row in mine if row["row"] == "both")
    for work in (None, *works):
        for row in mine:
            is_mine = row["row"] == "online alone" if work is None else row["row"] == "both" and row["work"] == work
            if is_mine:
                lines.append(_pair(row))
    return [*lines, ""]


def _pair(row):
    online, offline = row["online"], row.get("offline")
    times = " | ".join(ms(online[name]) for name in ("p50_us", "p90_us", "p99_us", "longest_us"))
    behind = " (falls behind)" if online["falls_behind"] else ""
    cells = [row.get("work", "(alone)"), row["side"], times, f"{online['requests']} of {online['arrived']}"]
    cells.append(number(online["p99_of_alone"]) + behind)
    cells += [number(offline["per_second"]), number(offline["of_alone"])] if offline else ["", ""]
    cells += [said(online["right"]), said(offline["right"]) if offline else ""]
    return "| " + " | ".join(cells) + " |"


def _pages(rows):
    found = [row for row in rows if row["row"] == "both" and "page" in row]
    if not found:
        return []
    lines = [
        "## What the gate did",
        "",
        "From the page of words that the sessions share. *Busy*: the share of the time for which an online program kept the gate closed. "
        "*Cost*: what offline work added to requests, as the online session measured it last; *group*: how long it lets groups of offline "
        "work be.",
        "",
        "| request | load | work | side | busy | periods/s | offline groups/s | group, us | cost | offline of alone |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in found:
        page, group = row["page"], row["page"]["group_us"]
        lines.append(
            f"| `{row['request']}` | {row['load']:g} | {row['work']} | {row['side']} | {number(page['busy'])} | {page['periods']:.0f} "
            f"| {page['groups']:.0f} | {number(group, 0)} | {number(page['cost'])} | {number(row['offline']['of_alone'])} |"
        )
    return [*lines, ""]


def _pauses(rows):
    found = [row for row in rows if row["row"] == "pauses"]
    if not found:
        return []
    lines = [
        "## In the pauses of the online program",
        "",
        "The online program has requests in bursts, with pauses as long between them. The offline program's rate in these pauses, of its "
        "rate alone and dedicated: in the first 10 ms of a pause, and from then on.",
        "",
        "| request | work | side | pauses | first 10 ms | later |",
        "|---|---|---|--:|--:|--:|",
    ]
    for row in found:
        cells = [f"`{row['request']}`", row["work"], row["side"], row["count"], number(row["first_10_ms"]), number(row["later"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def _verified(rows):
    found = [row for row in rows if row["row"] == "verify"]
    if not found:
        return []
    lines = [
        "## The bits of results",
        "",
        "Steps from a fixed state with exact algorithms, twice alone and once beside the online program at work; compared are all "
        "parameters, or the product.",
        "",
        "| work | side | beside | steps | same bits alone | same bits beside | as on the first side | online right |",
        "|---|---|---|--:|---|---|---|---|",
    ]
    for row in found:
        alone, beside, first = said(not row["varies_alone"]), said(row["right"]), "yes" if row["as_on_first_side"] else "no"
        lines.append(
            f"| {row['work']} | {row['side']} | `{row['request']}`, load {row['load']:g} | {row['steps']} | {alone} | {beside} "
            f"| {first} | {said(row['online']['right'])} |"
        )
    return [*lines, ""]


def _faults(rows):
    found = [row for row in rows if row["row"] == "faults"]
    if not found:
        return []
    lines = [
        "## Faults of offline programs behind the gate",
        "",
        "One after another beside the online program. *Longest request*: of those that waited or were served between a fault and "
        "the next one. *No answer*: the longest time in which none ended; where the online program has to be restored, requests wait "
        "for longer than that, because they have come meanwhile. *p99 around*: of all such requests; the other p99 is of the whole "
        "time, starts of offline programs included. A worker that is killed is a neighbour of the online program's.",
        "",
        "| fault | side | count | online errors | longest request, ms | median of longest | no answer, ms | p99 around | p99 | right "
        "| heard offline |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in found:
        online = row.get("online") or {"p99_us": None, "right": None}
        texts = "; ".join(f"{count} x {text}" for text, count in row["said"]).replace("|", "/")
        errors = f"**{len(row['online_errors'])}**" if row["online_errors"] else "0"
        lines.append(
            f"| {row['kind']} | {row['side']} | {row['count']} | {errors} | {ms(row.get('longest_us'))} "
            f"| {ms(row.get('median_longest_us'))} | {ms(row.get('silence_us'))} | {ms(row.get('p99_around_us'))} "
            f"| {ms(online['p99_us'])} | {said(online['right'])} | {texts} |"
        )
    lines += [f"\nOnline error after {row['kind']}: {error}" for row in found for error in row["online_errors"]]
    return [*lines, ""]


def _days(rows):
    return [text for row in rows if row["row"] == "day" for text in _day(row)]


def _day(row):
    names = {"utilization": "utilisation, %", "sm_active": "SMs active, %", "sm_occupancy": "SM occupancy, %"}
    names |= {"dram_active": "DRAM active, %", "memory_used_gib": "memory used, GiB"}
    whole = row["whole"]
    lines = [f"## A day in {row['seconds']:g} s: online `{row['request']}`, offline {row['work']}", ""]
    lines += ["| whole day | online alone | with offline |", "|---|--:|--:|"]

    def both(title, show, name):
        lines.append(f"| {title} | {show(whole['without'][name])} | {show(whole['with'][name])} |")

    for name, title in names.items():
        both(title, lambda value: number(value, 1), name)
    for name, title in (("p50_us", "p50, ms"), ("p99_us", "p99, ms"), ("worst_p99_us", "worst p99 of an hour without a fault, ms")):
        both(title, ms, name)
    both("requests", str, "requests")
    both("online right", said, "right")
    both("offline steps/s", number, "offline_per_second")
    both("offline of alone", number, "offline_of_alone")
    if row["why_no_activity"]:
        lines += ["", f"Not all activity is known: {row['why_no_activity']}."]
    head = "| hour | load | p99 alone, ms | p99 with | utilisation alone | with | SMs active alone | with | fault, its longest |"
    lines += ["", head]
    lines.append("|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    hours = {}
    for window in row["windows"]:
        hours.setdefault(window["hour"], {})[window["is_shared"]] = window
    for hour, pair in sorted(hours.items()):
        alone, shared = pair.get(False, {}), pair.get(True, {})
        cells = [str(hour), number((alone or shared)["load"])]
        cells += [ms(one.get("online", {}).get("p99_us")) for one in (alone, shared)]
        cells += [number(one.get(name), 0) for name in ("utilization", "sm_active") for one in (alone, shared)]
        fault = shared.get("fault")
        cells.append(f"{fault['kind']}, {ms(fault['longest_us'])} ms" if fault else "")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _failed(results):
    failed = [row for row in results["rows"] if "error" in row]
    lines = ["## Rows that failed", ""] if failed else []
    for row in failed:
        names = " ".join(str(row[name]) for name in ("row", "side", "request", "work", "load", "kind") if name in row)
        lines.append(f"- {names}: {row['error'][:300]}")
    if results["left_out"]:
        lines += ["", f"{len(results['left_out'])} rows were left out, because the time was over."]
    return lines
