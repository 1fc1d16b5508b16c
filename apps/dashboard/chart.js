// How busy the pool was while this page looked: mean utilisation, and memory in use.

import { $, el, svg } from "./dom.js";
import { span } from "./words.js";

const KEPT = 600; // twenty minutes at one sample in two seconds
const WIDTH = 420;
const HEIGHT = 150;
const LEFT = 42;
const BOTTOM = 18;
const samples = [];

export function sample(pool) {
  const measured = pool.gpus.filter((gpu) => gpu.counters !== undefined);
  const busy = measured.map((gpu) => gpu.counters.utilization_pct).filter((pct) => pct !== undefined);
  const withMemory = measured.filter((gpu) => gpu.counters.memory_used_bytes !== undefined);
  const total = withMemory.reduce((sum, gpu) => sum + gpu.memory_bytes, 0);
  const used = withMemory.reduce((sum, gpu) => sum + gpu.counters.memory_used_bytes, 0);
  samples.push({
    at: pool.now(),
    busy: busy.length === 0 ? null : busy.reduce((sum, pct) => sum + pct, 0) / busy.length,
    memory: total === 0 ? null : (100 * used) / total,
  });
  if (samples.length > KEPT) samples.shift();
  return samples.at(-1);
}

export function drawChart() {
  const first = samples[0];
  const last = samples.at(-1);
  if (first === undefined) return;
  // At least a minute, so that the first moments do not look like hours.
  const length = Math.max(60000, last.at - first.at);
  const x = (sample) => LEFT + ((WIDTH - LEFT) * (sample.at - last.at + length)) / length;
  const y = (pct) => 6 + (HEIGHT - BOTTOM - 6) * (1 - Math.min(100, pct) / 100);
  const path = (name) => {
    let text = "";
    let isDown = false;
    for (const sample of samples) {
      if (sample[name] === null) isDown = false;
      else {
        text += `${isDown ? "L" : "M"}${x(sample).toFixed(1)} ${y(sample[name]).toFixed(1)}`;
        isDown = true;
      }
    }
    return text;
  };
  const grid = [0, 50, 100].flatMap((pct) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(pct), y2: y(pct) }),
    svg("text", { x: LEFT - 6, y: y(pct) + 4, "text-anchor": "end" }, `${pct} %`),
  ]);
  const busy = path("busy");
  const area = busy === "" || samples.some((sample) => sample.busy === null) ? "" : `${busy}L${x(last).toFixed(1)} ${y(0)}L${x(first).toFixed(1)} ${y(0)}Z`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" },
    svg("title", {}, `utilisation ${percent(last.busy)}, memory ${percent(last.memory)}`),
    ...grid,
    svg("text", { x: LEFT, y: HEIGHT - 3 }, `${span(length)} ago`),
    svg("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, "now"),
    svg("path", { class: "area", d: area }),
    svg("path", { class: "line memory", d: path("memory") }),
    svg("path", { class: "line busy", d: busy }));
  const key = (name, text, value) => {
    const item = el("span", { class: name }, `${text} ${percent(value)}`);
    item.style.setProperty("--tone", name === "busy" ? "var(--leased)" : "var(--second)");
    return item;
  };
  $("use").replaceChildren(picture, el("div", { class: "keys" }, key("busy", "GPUs busy", last.busy), key("memory", "memory in use", last.memory)));
  $("use-span").textContent = "since this page was opened";
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(0)} %`);
