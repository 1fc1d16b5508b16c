"""What `bench/gpu/distance` found, as a page and as a figure."""

import html

import rounds

UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
WITHIN_POINTS_INJECTED, WITHIN_POINTS_API, OVERHEAD_MAX_PCT = 2.0, 3.0, 5.0


def microseconds(delay):
    """`50us` as a number; `none` is 0."""
    if delay == "none":
        return 0.0
    number = delay.rstrip("mus")
    return float(number) * UNITS_US[delay[len(number) :]]


def tcp_round_trip_us(results):
    """What TCP adds to a kernel that is waited for."""
    ms = results.get("calibration", {}).get("ms", {})
    if "native" not in ms or "tcp" not in ms:
        return None
    return max(1.0, (ms["tcp"] - ms["native"]) * 1e3)


def compare(results, row):
    """Fills in what was kept, measured and predicted, and by how many points they differ. Every figure is a median of ratios."""
    found, cycles = row.get("rounds", []), row.get("cycles", [])

    def kept(key, base, where):
        ratio = rounds.ratio(where, key, base)
        return None if ratio is None else 100.0 * ratio

    def known(pairs):
        return {key: value for key, value in pairs if value is not None}

    keys = {f"{rtt:g}": rounds.injected_key(rtt) for rtt in results["rtts_us"]}
    row["injected"] = known((rtt, kept(key, rounds.NOTHING, cycles)) for rtt, key in keys.items())
    row["injected_spread"] = known((rtt, rounds.middle_half_points(cycles, key, rounds.NOTHING)) for rtt, key in keys.items())
    row["added"] = known((rtt, rounds.added(cycles, key)) for rtt, key in keys.items())
    tcp = {key.partition("+")[2] or "none": key for key in row.get("ms", {}) if key.startswith("tcp")}
    row["api"] = known((delay, kept(key, "native", found)) for delay, key in tcp.items())
    # Against itself without delay: the same program, the same way to the GPU, and only the delay differs.
    row["api_delayed"] = known((delay, kept(key, "tcp", found)) for delay, key in tcp.items() if delay != "none")
    row["api_delayed_spread"] = known(
        (delay, rounds.middle_half_points(found, key, "tcp")) for delay, key in tcp.items() if delay != "none"
    )
    predicted = row.get("predicted_api", {})
    if base := predicted.get("none"):
        row["predicted_api_delayed"] = {delay: 100.0 * value / base for delay, value in predicted.items() if delay != "none"}
    if overhead := rounds.ratio(found, "trace", "native"):
        row["trace_overhead_pct"] = 100.0 * (1.0 / overhead - 1.0)
        row["trace_overhead_rounds_pct"] = [100.0 * (1.0 / one - 1.0) for one in rounds.ratios(found, "trace", "native")]
    if overhead := rounds.ratio(cycles, rounds.RECORDED, rounds.NOTHING):
        row["recording_overhead_pct"] = 100.0 * (1.0 / overhead - 1.0)
    for measured, predicted in (("injected", "predicted_injected"), ("api_delayed", "predicted_api_delayed"), ("api", "predicted_api")):
        row[f"{measured}_points"] = {
            key: row[predicted][key] - value for key, value in row[measured].items() if key in row.get(predicted, {})
        }


def markdown(results):
    machine = results["machine"]
    lines = [
        f"# Programs at a distance: {machine['gpu']}, {machine['date']}",
        "",
        f"Commit {machine['commit']}; {machine['cpu']}, {machine['cores']} cores; torch {results.get('torch')}. `{results['command']}`",
        "",
        "Performance kept, in % of the same program without a network. *Injected*: measured with `dxpu inject`, in one process by turns with"
        " nothing injected, two steps at a time; each is divided by those beside it, and the median over the cycles is shown. *Middle half*:"
        " how far apart the middle half of the cycles is, in points. *Added*: what each filler was asked to add and what it did, in us of the GPU's queue, and what its launch took of"
        " the calling thread. *Predicted*: `dxpu model predict --pcie-cost injected` from recordings of the same process, taken among"
        " the others; in brackets the difference in points.",
        "",
    ]
    rows = results["workloads"]
    rtts = [f"{rtt:g}" for rtt in results["rtts_us"]]
    lines += ["| workload | " + " | ".join(f"{rtt} us" for rtt in rtts) + " |", "|---|" + "--:|" * len(rtts)]
    for row in rows.values():
        lines.append(f"| {row['title']}, injected | " + _cells(row.get("injected"), rtts) + " |")
        lines.append("| predicted | " + _cells(row.get("predicted_injected"), rtts, row.get("injected_points")) + " |")
        lines.append(f"| middle half of {len(row.get('cycles', []))} cycles | " + _cells(row.get("injected_spread"), rtts) + " |")
        lines.append("| added: asked / did + launch | " + " | ".join(_added(row, rtt) for rtt in rtts) + " |")
    delays = sorted({key for row in rows.values() for key in row.get("api", {})}, key=microseconds)
    if delays:
        base = tcp_round_trip_us(results)
        lines += [
            "",
            "The api plane over TCP on one machine, with and without added delay"
            + (f"; without delay a round trip takes {base:.1f} us." if base else ".")
            + " *Kept under delay*: in % of its own speed without delay, which is what the delay costs and what is to be predicted."
            " *Of native*: against the native program in another process.",
            "",
            "| workload | " + " | ".join(f"+{delay}" if delay != "none" else "tcp" for delay in delays) + " |",
            "|---|" + "--:|" * len(delays),
        ]
        for row in rows.values():
            lines.append(f"| {row['title']}, kept under delay | " + _cells(row.get("api_delayed"), delays) + " |")
            lines.append("| predicted | " + _cells(row.get("predicted_api_delayed"), delays, row.get("api_delayed_points")) + " |")
            lines.append("| of native, measured | " + _cells(row.get("api"), delays) + " |")
            lines.append("| of native, predicted | " + _cells(row.get("predicted_api"), delays, row.get("api_points")) + " |")
    lines += [
        "",
        "| workload | native, ms | traced, ms | overhead (rounds) | of recording alone | launches a step | kernels, ms | clean samples | scaled | native replay |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows.values():
        profile = row.get("predicted_from", {})
        measured = profile.get("measured") or {}
        rounds_pct = row.get("trace_overhead_rounds_pct", [])
        cells = [
            _number(row.get("ms", {}).get("native"), "{:.3f}"),
            _number(row.get("ms", {}).get("trace"), "{:.3f}"),
            _number(row.get("trace_overhead_pct"), "{:+.1f} %") + (f" ({min(rounds_pct):+.1f} to {max(rounds_pct):+.1f})" if rounds_pct else ""),
            _number(row.get("recording_overhead_pct"), "{:+.1f} %"),
            _number(profile.get("launches"), "{:.0f}"),
            _number(profile.get("kernel_us", 0.0) / 1e3 or None, "{:.2f}"),
            f"{measured['clean']} of {measured['sampled']}" if "clean" in measured else "-",
            _number(measured.get("scaled"), "{:.3f}"),
            _number(row.get("native_replay_error_pct"), "{:+.1f} %"),
        ]
        lines.append(f"| {row['title']} | " + " | ".join(cells) + " |")
    lines += ["", *_verdicts(rows)]
    if results["errors"]:
        lines += ["", "Errors:", "", *(f"- {error}" for error in results["errors"])]
    return "\n".join(lines) + "\n"


def _number(value, form):
    return form.format(value) if value is not None else "-"


def _added(row, rtt):
    added = row.get("added", {}).get(rtt)
    if not added:
        return "-"
    return f"{added['asked_us']:.1f} / {added['added_us']:.1f} + {_number(added['launch_us'], '{:.1f}')}"


def _cells(values, keys, points=None):
    def cell(key):
        if not values or key not in values:
            return "-"
        apart = f" ({points[key]:+.1f})" if points and key in points else ""
        return f"{values[key]:.1f}{apart}"

    return " | ".join(map(cell, keys))


def _verdicts(rows):
    lines = ["| target | bound | measured | |", "|---|--:|--:|---|"]
    for title, field, bound in (
        ("predicted from injected", "injected", WITHIN_POINTS_INJECTED),
        ("predicted from the api plane under delay", "api_delayed", WITHIN_POINTS_API),
    ):
        # What varies by more than the bound from one moment to the next settles nothing about it, whichever way it came out.
        settled, open_ = [], []
        for row in rows.values():
            for key, value in row.get(f"{field}_points", {}).items():
                is_settled = row.get(f"{field}_spread", {}).get(key, 0.0) <= bound
                (settled if is_settled else open_).append((abs(value), row["title"], key))
        if settled:
            most = max(settled)
            within = sum(points <= bound for points, _, _ in settled)
            verdict = "pass" if within == len(settled) else "miss"
            lines.append(
                f"| {title}: the worst of {len(settled)} points | {bound} points | {most[0]:.1f} ({most[1]}, {most[2]}) | {verdict} |"
            )
        if open_:
            within = sum(points <= bound for points, _, _ in open_)
            lines.append(
                f"| {title}: {len(open_)} points whose own measurements vary by more than the bound | | {within} within"
                f" {bound}, the worst {max(open_)[0]:.1f} | not settled |"
            )
    for row in rows.values():
        if row["title"].startswith("ResNet-50 training") and "trace_overhead_pct" in row:
            overhead = row["trace_overhead_pct"]
            verdict = "pass" if overhead <= OVERHEAD_MAX_PCT else "miss"
            lines.append(f"| overhead of `dxpu trace`, {row['title']} | {OVERHEAD_MAX_PCT} % | {overhead:+.1f} % | {verdict} |")
    return lines


# The figure.

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 460, 60, 40, 330, 50
COLOURS = ["#2f7ed8", "#d9822b", "#3d9970", "#c23b6b", "#7a5cc0", "#8a7d3a", "#4a9aa5", "#a0522d"]


def figure(results):
    """Fig. 4 of the paper for this GPU: performance over the round trip, injected (points and lines) and predicted (dashes)."""
    rows = [row for row in results["workloads"].values() if row.get("injected")]
    rtts = results["rtts_us"] or [1.0]
    lowest = min([value for row in rows for value in row["injected"].values()] + [90.0])
    bottom = max(0.0, 10.0 * int(lowest / 10.0 - 0.5))
    x = lambda rtt: LEFT + (WIDTH - LEFT - RIGHT) * rtt / max(rtts)
    y = lambda pct: TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - (min(pct, 105.0) - bottom) / (105.0 - bottom))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        "<style>.ink{fill:#333}.grid{stroke:#8884}@media(prefers-color-scheme:dark){.ink{fill:#ccc}}</style>",
        f'<text class="ink" x="{LEFT}" y="22" font-size="15">Performance kept over the round trip, {html.escape(str(results.get("gpu")))}</text>',
    ]
    for pct in range(int(bottom), 101, 10):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(pct):.1f}" y2="{y(pct):.1f}"/>')
        parts.append(f'<text class="ink" x="{LEFT - 8}" y="{y(pct) + 4:.1f}" text-anchor="end">{pct}</text>')
    for rtt in rtts:
        parts.append(f'<text class="ink" x="{x(rtt):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{rtt:g}</text>')
    parts.append(f'<text class="ink" x="{x(max(rtts) / 2):.1f}" y="{HEIGHT - 10}" text-anchor="middle">round trip of a PCIe read, us</text>')
    parts.append(f'<text class="ink" x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">% kept</text>')
    for number, row in enumerate(rows):
        colour = COLOURS[number % len(COLOURS)]
        for field, style in (("injected", ""), ("predicted_injected", ' stroke-dasharray="5 4"')):
            points = [(x(rtt), y(row[field][f"{rtt:g}"])) for rtt in rtts if f"{rtt:g}" in row.get(field, {})]
            if points:
                path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
                parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"{style}/>')
            if field == "injected":
                parts += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        key_y = TOP + 16 + 18 * number
        parts.append(f'<line x1="{WIDTH - RIGHT + 14}" x2="{WIDTH - RIGHT + 34}" y1="{key_y - 4}" y2="{key_y - 4}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text class="ink" x="{WIDTH - RIGHT + 40}" y="{key_y}">{html.escape(row["title"][:46])}</text>')
    key_y = TOP + 16 + 18 * (len(rows) + 1)
    parts.append(f'<text class="ink" x="{WIDTH - RIGHT + 14}" y="{key_y}">lines: injected; dashes: predicted from a trace</text>')
    return "\n".join([*parts, "</svg>", ""])
