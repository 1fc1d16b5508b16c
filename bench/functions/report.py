"""Tables in Markdown and plots in SVG from what was measured; written with the standard library alone."""

import statistics

# What the paper says of DGSF, on V100s: to stand beside, not to be compared number by number.
DGSF = "up to 53 % less queueing with sharing; functions as fast as native or faster, because contexts are made ahead"


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def good(requests):
    return [request for request in requests if "error" not in request]


def of_load(load):
    """The line of one load on one side."""
    requests = good(load["requests"])
    ends, queues = [r["end_to_end_s"] for r in requests], [r["queue_s"] for r in requests]
    return {
        "sent": len(load["requests"]),
        "planned": load["planned"],
        "errors": len(load["requests"]) - len(requests),
        "mean_end_to_end_s": statistics.fmean(ends) if ends else None,
        "p99_end_to_end_s": quantile(ends, 0.99) if ends else None,
        "worst_end_to_end_s": max(ends, default=None),
        "mean_queue_s": statistics.fmean(queues) if queues else None,
        "throughput_per_s": len(requests) / load["wall_s"] if load["wall_s"] else None,
    }


def number(value, digits=2):
    return "–" if value is None else f"{value:.{digits}f}"


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def markdown(found):
    parts = [f"# Functions on a GPU\n\n{found['machine']}, {found['when']}, commit {found['commit']}, {found['used_s']:.0f} s in all.\n"]
    if found["soft"]:
        parts.append("A GPU in software, and k-means in place of each workload: a check that everything works; the times mean nothing.\n")
    elif found["tiny"]:
        parts.append("Tiny sizes: a check that everything works; the times mean nothing.\n")
    if found["single"]:
        parts += ["## One request at a time\n\nRequest to answer in seconds, median; process start included unless warm.\n", single(found["single"])]
    if found["start"]:
        parts += ["## The start of a new instance\n\nMedian of seconds; the first instance beside the median of the others.\n", start(found["start"])]
    if found["loads"]:
        parts += ["## Loads\n", loads(found["loads"]), f"\nDGSF says of itself: {DGSF}.\n"]
    if found["ablation"]:
        parts += ["## Ablation\n\nMean request to answer in seconds over the six workloads, two requests to each in a row, and one where nothing is kept between them.\n", ablation(found["ablation"])]
    if found["skipped"]:
        parts.append("## Left out\n\n" + "\n".join(f"- {what}" for what in found["skipped"]))
    if found["errors"]:
        parts.append("## Errors\n\n" + "\n".join(f"- {what}" for what in found["errors"]))
    wrong = found["wrong"]
    parts.append("## Results\n\n" + ("\n".join(f"- wrong: {what}" for what in wrong) if wrong else "All sides gave the same results."))
    return "\n\n".join(parts) + "\n"


def single(sides):
    names = sorted({name for side in sides.values() for name in side})
    middle = lambda side, name: statistics.median(sides[side][name]) if sides[side].get(name) else None  # noqa: E731
    return table(["workload", *sides], [[name, *(number(middle(side, name)) for side in sides)] for name in names])


def start(found):
    rows = []
    for name, measured in found.items():
        middle = lambda of: number(statistics.median(map(of, measured[1:] or measured)), 3)  # noqa: E731,B023
        first = measured[0]
        rows.append([
            name, number(first["first_s"][0], 3), middle(lambda one: one["first_s"][0]), middle(lambda one: one["first_s"][1]),
            number(first["load_s"], 3), middle(lambda one: one["load_s"]), middle(lambda one: one["end_to_end_s"]),
        ])
    head = ["side", "first CUDA result, first instance", "others", "from process start", "weights, first instance", "others", "request to answer"]
    return table(head, rows)


def loads(found):
    rows = []
    for load, sides in found.items():
        base = sides.get("dxpu, exclusive")
        before = of_load(base)["mean_queue_s"] if base else None
        for side, measured in sides.items():
            line = of_load(measured)
            less = None
            if before and line["mean_queue_s"] is not None:
                less = 100 * (1 - line["mean_queue_s"] / before)
            rows.append([
                load, side, f"{line['sent']} of {line['planned']}", line["errors"], number(line["mean_end_to_end_s"]),
                number(line["p99_end_to_end_s"]), number(line["worst_end_to_end_s"]), number(line["mean_queue_s"]),
                "–" if less is None else f"{less:.0f} %", number(line["throughput_per_s"]),
            ])
    head = ["load", "side", "sent", "errors", "mean s", "p99 s", "worst s", "queue s", "less queue than exclusive", "answers/s"]
    return table(head, rows)


def mean_of(times):
    return statistics.fmean(times) if times else None


def first_of(every):
    return mean_of([times[0] for times in every if times])


def later_of(every):
    """The mean of what came after the first request of each workload."""
    return mean_of([took for times in every for took in times[1:]])


def ablation(found):
    """The first request of each workload, and the later ones, which find what is kept."""
    # Where nothing is kept a later request is as the first one.
    parts = {name: (first_of(every), later_of(every) or first_of(every)) for name, every in found.items()}
    base = parts.get("none", (None, None))

    def less(value, none):
        return f"{100 * (1 - value / none):.0f} %" if value and none else "–"

    rows = [
        [name, number(first), less(first, base[0]), number(later), less(later, base[1])] for name, (first, later) in parts.items()
    ]
    return table(["on", "first request, s", "less than none", "later requests, s", "less than none"], rows)


def bars(title, values, y_text):
    """A bar for each name."""
    values = {name: value for name, value in values.items() if value}
    if not values:
        return None
    y_max, step, body = max(values.values()), (WIDTH - EDGE - 20) / len(values), ""
    for at, (name, value) in enumerate(values.items()):
        height, x = value / y_max * (HEIGHT - 85), EDGE + 10 + at * step
        body += f'<rect x="{x:.0f}" y="{HEIGHT - 35 - height:.0f}" width="{step * 0.7:.0f}" height="{height:.0f}" fill="{COLOURS[at % len(COLOURS)]}"/>'
        body += f'<text x="{x:.0f}" y="{HEIGHT - 39 - height:.0f}">{value:.2f}</text>'
        first, _, rest = name.partition(", ")
        body += f'<text x="{x:.0f}" y="{HEIGHT - 22}" font-size="9">{first}</text><text x="{x:.0f}" y="{HEIGHT - 12}" font-size="9">{rest}</text>'
    return frame(title, body, "", y_text)


WIDTH, HEIGHT, EDGE = 760, 260, 50
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2"]


def frame(title, body, x_text, y_text):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="white"/><text x="{EDGE}" y="16" font-size="13">{title}</text>{body}'
        f'<path d="M{EDGE} 30V{HEIGHT - 35}H{WIDTH - 10}" fill="none" stroke="black"/>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 8}" text-anchor="end">{x_text}</text><text x="4" y="26">{y_text}</text></svg>\n'
    )


def lines(title, series, x_text, y_text):
    """Curves: by name, points (x, y)."""
    every = [point for points in series.values() for point in points]
    if not every:
        return None
    x_max, y_max = max(x for x, _ in every) or 1, max(y for _, y in every) or 1
    x_of = lambda x: EDGE + x / x_max * (WIDTH - EDGE - 20)  # noqa: E731
    y_of = lambda y: HEIGHT - 35 - y / y_max * (HEIGHT - 75)  # noqa: E731
    body = f'<text x="{EDGE - 4}" y="{y_of(y_max) + 4}" text-anchor="end">{y_max:.1f}</text>'
    body += f'<text x="{x_of(x_max)}" y="{HEIGHT - 22}" text-anchor="end">{x_max:.0f}</text>'
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        body += f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        body += f'<text x="{EDGE + 8 + number * 165}" y="{HEIGHT - 8}" fill="{colour}">{name}</text>'
    return frame(title, body, x_text, y_text)


def distribution(values):
    ordered = sorted(values)
    return [(value, (at + 1) / len(ordered)) for at, value in enumerate(ordered)]


def plots(found):
    """By file name: how request to answer and queueing are distributed, and utilisation over time."""
    drawn = {}
    for load, sides in found["loads"].items():
        slug = load.replace(",", "").replace(" ", "-")
        for what, title in (("end_to_end_s", "request to answer"), ("queue_s", "queueing")):
            series = {side: distribution([r[what] for r in good(measured["requests"])]) for side, measured in sides.items()}
            drawn[f"{slug}-{what.removesuffix('_s')}.svg"] = lines(f"{load}: {title}", series, "seconds", "part of the requests")
        series = {side: measured["utilisation"] for side, measured in sides.items() if measured.get("utilisation")}
        drawn[f"{slug}-utilisation.svg"] = lines(f"{load}: the GPU's utilisation", series, "seconds", "%")
    later = {name: later_of(every) or first_of(every) for name, every in found["ablation"].items()}
    drawn["ablation.svg"] = bars("Each optimisation alone, and all: mean of later requests", later, "seconds")
    return {name: text for name, text in drawn.items() if text}
