"""Results as text: one row as it comes, and a Markdown page."""

import summary
from modes import BOUNDS
from workloads import STEPS


def milliseconds(value):
    if value is None:
        return "-"
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 10 else f"{value:.1f}"


def cell(results, workload, mode):
    """Time and, away from the base, how it compares."""
    row = results["workloads"][workload]["modes"].get(mode, {})
    if "error" in row and not row.get("repetitions"):
        return "error"
    time, ratio = summary.time_ms(results, workload, mode), summary.ratio(results, workload, mode)
    text = milliseconds(time)
    if time and mode != results["base"] and ratio:
        text += f" ({ratio:.2f})"
    return text + ("!" if row.get("is_different") else "")


def row(results, workload):
    """One line for the terminal."""
    cells = " ".join(f"{mode} {cell(results, workload, mode)}" for mode in results["modes"])
    return f"{workload:<21} {cells}"


def markdown(results):
    machine, modes = results["machine"], results["modes"]
    lines = [
        f"# Measured on {machine['gpu'] or 'no GPU'}, {machine['date']}",
        "",
        f"Commit {machine['commit']}; {machine['cpu']}, {machine['cores']} cores; torch {results.get('torch', '?')}; "
        f"{results['repetitions']} repetitions, modes alternating, one process per mode. "
        f"Milliseconds per step, median; in brackets {results['base']} time / time (above 1 = faster than {results['base']}). "
        f"`{results['command']}`",
        "",
        "| workload | " + " | ".join(modes) + " |",
        "|---|" + "--:|" * len(modes),
    ]
    for name, measured in results["workloads"].items():
        star = "" if name in STEPS else " °"
        lines.append(f"| {measured['title']}{star} | " + " | ".join(cell(results, name, mode) for mode in modes) + " |")
    means = summary.geometric_means(results)
    shown = [f"**{means[mode]['ratio']:.3f}** ({means[mode]['of']} of {len(STEPS)})" if mode in means else "-" for mode in modes]
    lines.append("| geometric mean of the steps | " + " | ".join(shown) + " |")
    lines += ["", "° not a step: not in the geometric mean. ! the results differ from the base's."]
    lines += _limit(results) + _first_use(results) + _copies(results) + _targets(results) + _errors(results)
    return "\n".join(lines) + "\n"


def _limit(results):
    """How much of the way from native to the fastest possible each mode has gone."""
    if summary.LIMIT not in results["modes"]:
        return []
    modes = [mode for mode in results["modes"] if mode not in (results["base"], *BOUNDS)]
    mean = summary.fastest_mean(results)
    lines = [
        "",
        "*Limit*: with a driver that does nothing a step takes what the program's own processor time needs (copies to the host are made). "
        "*GPU*: how long the GPU itself works in a step. No driver can be faster than the longer of both. "
        f"Of the way from {results['base']} to there each mode has gone so much: 1 is there, 0 is {results['base']}, below 0 is slower. "
        f"-: there is less than {summary.SAVED_MIN:.0%} to go. "
        + (f"The fastest possible driver would have a geometric mean of **{mean['ratio']:.3f}** ({mean['of']} of {len(STEPS)} steps)." if mean else ""),
        "",
        f"| step | {results['base']}, ms | limit, ms | GPU, ms | " + " | ".join(modes) + " |",
        "|---|--:|--:|--:|" + "--:|" * len(modes),
    ]
    for name in results["workloads"]:
        if limit := summary.time_ms(results, name, summary.LIMIT):
            ways = [summary.way_to_limit(results, name, mode) for mode in modes]
            shown = " | ".join("-" if way is None else f"{way:.2f}" for way in ways)
            base = milliseconds(summary.time_ms(results, name, results["base"]))
            gpu = milliseconds(summary.time_ms(results, name, summary.GPU))
            lines.append(f"| {results['workloads'][name]['title']} | {base} | {milliseconds(limit)} | {gpu} | {shown} |")
    return lines


def _first_use(results):
    if not results.get("first_use"):
        return []
    lines = ["", "| first use in a fresh process | first call to its end, s | whole process, s |", "|---|--:|--:|"]
    for mode, row in results["first_use"].items():
        if row.get("seconds"):
            every = ", ".join(f"{value:.3f}" for value in sorted(row["seconds"]))
            whole = ", ".join(f"{value:.1f}" for value in sorted(row["process_seconds"]))
            lines.append(f"| {mode} | {summary.first_use_s(results, mode):.3f} ({every}) | {whole} |")
        else:
            lines.append(f"| {mode} | {row.get('error', '-')} | |")
    return lines


def _copies(results):
    copies = [name for name, row in results["workloads"].items() if row["bytes_moved"]]
    if not copies:
        return []
    modes = results["modes"]
    lines = ["", "| GB/s | " + " | ".join(modes) + " |", "|---|" + "--:|" * len(modes)]
    for name in copies:
        rates = [summary.gbps(results, name, mode) for mode in modes]
        lines.append(
            f"| {results['workloads'][name]['title']} | " + " | ".join(f"{rate:.2f}" if rate else "-" for rate in rates) + " |"
        )
    for n, bare in enumerate(results.get("bare", [])):
        rates = [f"{bare[mode]['gbps']:.2f}" if mode in bare else "" for mode in modes]
        lines.append(f"| bare transport, 4 streams, memory to memory ({n + 1}) | " + " | ".join(rates) + " |")
    if note := results.get("bare_note"):
        lines += ["", note]
    return lines


def _targets(results):
    judged = summary.targets(results)
    if not judged:
        return []
    lines = ["", "| target | bound | measured | |", "|---|--:|--:|---|"]
    return lines + [f"| {t.title} | {t.bound_text} | {t.value:.3f} | {t.verdict} |" for t in judged]


def _errors(results):
    found = [
        f"- {name}, {mode}: {row['error']}"
        for name, measured in results["workloads"].items()
        for mode, row in measured["modes"].items()
        if "error" in row
    ]
    found += [f"- {text}" for text in results.get("errors", [])]
    return ["", "Errors:", "", *found] if found else []
