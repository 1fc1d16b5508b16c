"""Latency of online programs against throughput of offline ones, as an SVG: a panel for each load, a marker for each side. Pure."""

import html
import math

WIDTH, HEIGHT = 400, 340
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 44, 52
LEGEND = 30
# Above it a queue grows, and its p99 says only how long the row was.
P99_MOST = 1000
OFFLINE_MOST = 1.1
COLOURS = {
    "slices": "#b5482f",
    "gate": "#1a6fb0",
    "native": "#8a8a8a",
    "mps": "#c9a227",
    "mps30": "#5a8f3c",
    "merged": "#7b4fa3",
    "isolated": "#0b8a99",
}


def marker(side, x, y, title=""):
    """A shape of its own for each side, so that the plot can be read without colours."""
    lines = {
        "slices": ((-5, -5), (5, 5), (0, 0), (-5, 5), (5, -5), (0, 0)),
        "mps": ((0, -6), (6, 5), (-6, 5)),
        "mps30": ((-5, -5), (5, -5), (5, 5), (-5, 5)),
        "merged": ((0, -6), (6, 0), (0, 6), (-6, 0)),
        "isolated": ((0, 6), (6, -5), (-6, -5)),
    }
    colour = COLOURS.get(side, "#000000")
    paint = f'fill="{colour}" fill-opacity="0.6" stroke="{colour}" stroke-width="1.6"'
    told = f"<title>{html.escape(title)}</title>"
    if side not in lines:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" {paint}>{told}</circle>'
    corners = " ".join(f"{x + right:.1f},{y + down:.1f}" for right, down in lines[side])
    return f'<polygon points="{corners}" {paint}>{told}</polygon>'


def svg(rows):
    points = [row for row in rows if row["row"] == "both" and "error" not in row and row["online"].get("p99_of_alone")]
    points = [row for row in points if row["offline"].get("of_alone") is not None]
    loads = sorted({row["load"] for row in points}) or [None]
    wide, high = WIDTH * len(loads), HEIGHT + LEGEND
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{high}" fill="white"/>',
    ]
    for at, load in enumerate(loads):
        out.append(f'<g transform="translate({at * WIDTH} 0)">')
        out += _panel(load, [row for row in points if row["load"] == load])
        out.append("</g>")
    x = LEFT
    for side in dict.fromkeys(row["side"] for row in points):
        out.append(marker(side, x, HEIGHT + LEGEND / 2 - 4))
        out.append(_text(x + 11, HEIGHT + LEGEND / 2, side))
        x += 28 + 8 * len(side)
    out.append("</svg>")
    return "\n".join(out) + "\n"


def place(offline, p99):
    """Where in a panel a point is. Points beyond an axis are at its end."""
    inside_wide, inside_high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    x = LEFT + inside_wide * min(max(offline, 0), OFFLINE_MOST) / OFFLINE_MOST
    # From 0.5: a row beside another program may have been a bit faster than the one alone.
    height = (math.log10(min(max(p99, 0.5), P99_MOST)) - math.log10(0.5)) / (math.log10(P99_MOST) - math.log10(0.5))
    return x, TOP + inside_high * (1 - height)


def _text(x, y, text, anchor="start", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#222222" {more}>{html.escape(text)}</text>'


def _panel(load, points):
    out = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for p99 in (0.5, 1, 2, 5, 10, 20, 50, 100, 1000):
        _, y = place(0, p99)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{"#555555" if p99 == 1 else "#dddddd"}"/>')
        out.append(_text(LEFT - 6, y + 4, f"≥{p99}" if p99 == P99_MOST else f"{p99:g}", "end"))
    for tenth in range(0, 11, 2):
        x, _ = place(tenth / 10, 1)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#eeeeee"/>')
        out.append(_text(x, bottom + 16, f"{tenth / 10:g}", "middle"))
    out.append(_text((LEFT + right) / 2, bottom + 36, "offline throughput, share of alone", "middle"))
    middle = (TOP + bottom) / 2
    out.append(_text(18, middle, "online p99, times alone", "middle", f'transform="rotate(-90 18 {middle:.1f})"'))
    title = "no pairs were measured" if load is None else f"online load {load:g}"
    out.append(_text((LEFT + right) / 2, 24, title, "middle", 'font-size="14" font-weight="bold"'))
    for row in points:
        offline, p99 = row["offline"]["of_alone"], row["online"]["p99_of_alone"]
        behind = ", falls behind" if row["online"]["falls_behind"] else ""
        told = f"{row['side']}: online {row['request']}, offline {row['work']}: p99 x {p99:.2f}{behind}, offline {offline:.2f}"
        out.append(marker(row["side"], *place(offline, p99), told))
    return out
