// Charts over time, drawn by hand: lines or stacked areas, and what they say at one moment.

import { $, el, show, svg } from "./dom.js";
import { moment } from "./words.js";

const WIDTH = 460;
const HEIGHT = 190;
const LEFT = 54;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 24;

/** Where the reader looks, by chart: an index into its points, or nothing. */
const looks = new Map();

/** Round steps for an axis up to `most`. */
function ticks(most) {
  const rough = most / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough) ?? power;
  const all = [];
  for (let at = 0; at <= most + step * 0.001; at += step) all.push(Number(at.toPrecision(6)));
  if (all.at(-1) < most) all.push(Number((all.at(-1) + step).toPrecision(6)));
  return all;
}

/**
 * Draws into the figure with this id.
 * points: [{at_ms, span_ms, …}] oldest first · series: [{name, text, of: (point) => number|null}], lowest first
 * from, to: the time that is shown · most: the top of the axis, or nothing · unit: how a number reads
 */
export function drawChart(id, { title, points, series, isStacked = false, from, to, most, unit, empty }) {
  const figure = $(id);
  if (points.length === 0) return show(figure, el("p", { class: "empty" }, empty));
  const values = (point) => {
    let below = 0;
    return series.map(({ of }) => {
      const own = of(point);
      if (!isStacked) return [null, own];
      const bottom = below;
      below += own ?? 0;
      return [bottom, below];
    });
  };
  const table = points.map(values);
  const highest = most ?? Math.max(1, ...table.flatMap((row) => row.map(([, top]) => top ?? 0)));
  const marks = ticks(highest);
  const top = marks.at(-1);
  const x = (ms) => LEFT + ((WIDTH - LEFT - RIGHT) * (Math.min(to, Math.max(from, ms)) - from)) / (to - from);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(top, value) / top);
  const at = (index) => x(points[index].at_ms + points[index].span_ms / 2);
  const look = looks.get(id) ?? null;
  const shown = look === null ? points.length - 1 : Math.min(look, points.length - 1);
  const read = series.map(({ name, text, of }) => ({ name, text, value: unit(of(points[shown])) }));
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: 0, "data-chart": id, "data-points": points.length,
    "data-from": from, "data-to": to,
    "aria-label": `${title}: ${read.map(({ text, value }) => `${text} ${value}`).join(", ")}. Arrow keys read other moments.` },
    marks.map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, unit(value)),
    ]),
    hours(from, to).map(({ ms, text }, index, all) =>
      svg("text", { x: x(ms), y: HEIGHT - 6, "text-anchor": index === 0 ? "start" : index === all.length - 1 ? "end" : "middle" }, text)),
    series.map(({ name }, place) => [
      isStacked ? svg("path", { class: `area ${name}`, d: area(points, table, place, at, y) }) : null,
      svg("path", { class: `line ${name}`, d: line(points, table, place, at, y) }),
    ]),
    look === null ? null : svg("line", { class: "look", x1: at(shown), x2: at(shown), y1: TOP, y2: HEIGHT - BOTTOM }));
  show(figure, picture,
    el("figcaption", {},
      el("span", { class: "when" }, look === null ? "now" : moment(points[shown].at_ms)),
      read.map(({ name, text, value }) => el("span", { class: `key ${name}` }, `${text} `, el("b", {}, value)))));
}

/** Runs of points that follow each other: a manager that was away leaves a gap. */
function runs(points, has) {
  const all = [];
  points.forEach((point, index) => {
    if (!has(index)) return;
    const last = all.at(-1)?.at(-1);
    const follows = last === index - 1 && point.at_ms - points[last].at_ms <= 2.5 * Math.max(point.span_ms, points[last].span_ms);
    if (follows) all.at(-1).push(index);
    else all.push([index]);
  });
  return all;
}

const place2 = (x, y) => `${x.toFixed(1)} ${y.toFixed(1)}`;

function line(points, table, place, at, y) {
  return runs(points, (index) => table[index][place][1] !== null && table[index][place][1] !== undefined)
    .map((run) => {
      const path = run.map((index) => place2(at(index), y(table[index][place][1])));
      return `M${path.length === 1 ? `${path[0]}h1.5` : path.join("L")}`;
    })
    .join("");
}

function area(points, table, place, at, y) {
  return runs(points, () => true)
    .map((run) => {
      const upper = run.map((index) => place2(at(index), y(table[index][place][1])));
      const lower = run.toReversed().map((index) => place2(at(index), y(table[index][place][0])));
      return `M${[...upper, ...lower].join("L")}Z`;
    })
    .join("");
}

function hours(from, to) {
  const count = 4;
  return Array.from({ length: count + 1 }, (_, index) => {
    const ms = from + ((to - from) * index) / count;
    return { ms, text: index === count ? "now" : new Date(ms).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false }) };
  });
}

/** Reading a moment with the pointer or the arrow keys. */
export function watchCharts(draw) {
  const chartOf = (event) => event.target.closest?.("[data-chart]");
  const look = (id, index) => {
    if ((looks.get(id) ?? null) === index) return;
    if (index === null) looks.delete(id);
    else looks.set(id, index);
    draw();
  };
  document.addEventListener("pointermove", (event) => {
    const chart = chartOf(event);
    if (!chart) {
      if (looks.size > 0 && !document.activeElement?.dataset?.chart) {
        looks.clear();
        draw();
      }
      return;
    }
    const rectangle = chart.getBoundingClientRect();
    const within = ((event.clientX - rectangle.left) / rectangle.width) * WIDTH;
    const share = Math.min(1, Math.max(0, (within - LEFT) / (WIDTH - LEFT - RIGHT)));
    document.dispatchEvent(new CustomEvent("look", { detail: { id: chart.dataset.chart, share, set: look } }));
  });
  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    const last = Number(chart?.dataset.points) - 1;
    if (!chart || last < 0) return;
    const id = chart.dataset.chart;
    const now = looks.get(id) ?? last;
    const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, PageUp: now - 30, PageDown: now + 30 }[event.key];
    if (event.key === "Escape") look(id, null);
    if (next === undefined) return;
    event.preventDefault();
    look(id, Math.max(0, Math.min(last, next)));
  });
}
