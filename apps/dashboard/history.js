// Utilisation, memory, GPUs and the queue over the last hour or day, as the manager has kept them.

import { get } from "./api.js";
import { drawChart, watchCharts } from "./chart.js";
import { $, el, on, show } from "./dom.js";
import { me } from "./session.js";
import { bytes, moment, percent } from "./words.js";

/** Why leases wait, in words, in the order they are stacked. */
const REASONS = [
  ["leased", "leased to others"],
  ["queue", "others come first"],
  ["quota", "tenant's limit"],
  ["together", "not enough together"],
  ["cleaning", "being cleaned"],
  ["out", "broken or drained"],
  ["spare", "held as spares"],
  ["none_fits", "no GPU fits"],
  ["not_examined", "not looked at"],
];

const REFRESH_MS = 10000;

let span = "hour";
let tenant = "";
let points = [];
let answer = null;
let isFetching = false;
let isStale = true;
let askedAt = 0;

/** Asks for what is new, every ten seconds. */
export async function lookBack() {
  if (isFetching || (!isStale && Date.now() - askedAt < REFRESH_MS)) return;
  isFetching = true;
  const [forSpan, forTenant] = [span, tenant];
  const isFresh = isStale || points.length < 2;
  try {
    // The last step was not over; it is asked for again.
    const after = isFresh ? 0 : points.at(-2).at_ms;
    const of = forTenant === "" ? "" : `&tenant=${encodeURIComponent(forTenant)}`;
    const told = await get(`/v1/history?span=${forSpan}${of}&after_ms=${after}`);
    if (forSpan !== span || forTenant !== tenant) return;
    points = [...(isFresh ? [] : points.filter((point) => point.at_ms <= after)), ...told.points];
    points = points.filter((point) => point.at_ms >= told.now_ms - told.span_ms);
    answer = told;
    askedAt = Date.now();
    isStale = false;
  } finally {
    isFetching = false;
  }
}

export function drawHistory() {
  if (answer === null) return;
  drawControls();
  const to = answer.now_ms;
  const from = to - answer.span_ms;
  const time = { points, from, to, empty: "No history yet. The manager looks at the pool every 10 seconds; come back in a moment." };
  const ofTenant = tenant !== "";
  const isMeasured = points.some((point) => point.utilization_pct !== undefined || point.memory_bytes !== undefined);
  drawChart("chart-use", {
    ...time, title: "Utilisation and memory", most: 100, unit: percent,
    points: isMeasured ? points : [],
    empty: me.may.read_everything || ofTenant ? "No GPU has reported its utilisation in this time." : "Choose your tenant to see its utilisation and memory.",
    series: [
      { name: "memory", text: "memory", of: (point) => (point.memory_bytes ? (100 * point.memory_used_bytes) / point.memory_bytes : null) },
      { name: "busy", text: "busy", of: (point) => point.utilization_pct ?? null },
      // GPUs before Hopper do not tell it: without such a point there is no line, and no key without one.
      ...(points.some((point) => point.sm_activity_pct !== undefined)
        ? [{ name: "sm", text: "SM activity", of: (point) => point.sm_activity_pct ?? null }] : []),
    ],
  });
  const count = (value) => (value === null || value === undefined ? "–" : String(Math.round(value * 10) / 10));
  const gpus = ofTenant
    ? [{ name: "leased", text: "leased", of: (point) => point.leased }]
    : [
      { name: "leased", text: "leased", of: (point) => point.leased },
      { name: "free", text: "free", of: (point) => point.free },
      { name: "rest", text: "spare or out", of: (point) => Math.max(0, point.gpus - point.leased - point.free) },
    ];
  drawChart("chart-gpus", { ...time, title: "GPUs", series: gpus, isStacked: true, unit: count });
  const isQueueKnown = points.some((point) => point.waiting !== undefined);
  const present = REASONS.filter(([name]) => points.some((point) => point.reasons?.[name] > 0));
  drawChart("chart-queue", {
    ...time, title: "Leases that wait", isStacked: true, unit: count,
    points: isQueueKnown ? points : [],
    empty: "Choose your tenant to see its queue.",
    series: present.length === 0
      ? [{ name: "waits", text: "waiting", of: (point) => point.waiting ?? 0 }]
      : present.map(([name, text]) => ({ name: `why-${name}`, text, of: (point) => point.reasons?.[name] ?? 0 })),
  });
  const last = points.at(-1);
  const memory = last?.memory_bytes ? `${bytes(last.memory_used_bytes)} of ${bytes(last.memory_bytes)} of memory in use` : "";
  const sinceLater = answer.since_ms !== undefined && answer.since_ms > from + 120000;
  $("history-note").textContent = [memory, sinceLater ? `known since ${moment(answer.since_ms)}` : ""].filter(Boolean).join(" · ");
}

function drawControls() {
  show($("span"), ["hour", "day"].map((name) =>
    el("button", { type: "button", "data-do": "span", "data-span": name, "aria-pressed": String(name === span) }, `Last ${name}`)));
  // While it is open, the reader chooses.
  if (document.activeElement === $("tenant")) return;
  const names = answer.tenants.includes(tenant) || tenant === "" ? answer.tenants : [...answer.tenants, tenant];
  show($("tenant"), el("option", { value: "" }, "Whole pool"), names.map((name) => el("option", { value: name }, `Tenant ${name}`)));
  $("tenant").value = tenant;
}

export function watchHistory(draw) {
  const changed = async () => {
    isStale = true;
    points = [];
    await lookBack().catch(() => null);
    draw();
  };
  on("span", (data) => {
    span = data.span;
    changed();
  });
  $("tenant").addEventListener("change", () => {
    tenant = $("tenant").value;
    changed();
  });
  document.addEventListener("look", ({ detail: { id, share, set } }) => {
    if (points.length === 0) return;
    const at = answer.now_ms - answer.span_ms * (1 - share);
    let nearest = 0;
    points.forEach((point, index) => {
      const middle = (candidate) => Math.abs(candidate.at_ms + candidate.span_ms / 2 - at);
      if (middle(point) < middle(points[nearest])) nearest = index;
    });
    set(id, nearest);
  });
  watchCharts(draw);
}
