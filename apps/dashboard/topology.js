// Boxes and their slots, by rack; and one GPU in detail.

import { $, el, fill } from "./dom.js";
import { bytes, span, state, who } from "./words.js";

const STATES = ["free", "leased", "cleaning", "burn_in", "bad", "absent"];

let chosen = null;
const slots = new Map();

export function drawLegend() {
  const items = STATES.map((name) =>
    el("span", {}, el("i", { class: "dot", "data-gpu": name }), state(name)));
  items.splice(1, 0, el("span", {}, el("i", { class: "dot spare" }), "spare"));
  $("legend").replaceChildren(...items);
}

export function drawTopology(pool) {
  const racks = new Map();
  for (const box of pool.boxes) {
    if (!racks.has(box.rack)) racks.set(box.rack, []);
    racks.get(box.rack).push(box);
  }
  const gpusOf = new Map();
  for (const gpu of pool.gpus) {
    if (!gpusOf.has(gpu.box_name)) gpusOf.set(gpu.box_name, []);
    gpusOf.get(gpu.box_name).push(gpu);
  }
  const shape = pool.boxes.map((box) => [box.name, box.rack, box.kind, box.state, (gpusOf.get(box.name) ?? []).map((gpu) => gpu.slot)]);
  fill($("boxes"), shape, () => {
    slots.clear();
    if (pool.boxes.length === 0) return [el("p", { class: "empty" }, "No boxes yet. On a machine with GPUs: ", el("code", {}, "dxpu box --help"))];
    return [...racks].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true })).map(([rack, boxes]) =>
      el("div", { class: "rack" },
        racks.size > 1 || rack !== "" ? el("h3", {}, rack === "" ? "no rack" : `rack ${rack}`) : null,
        el("div", { class: "boxes" }, ...boxes.map((box) => boxCard(box, gpusOf.get(box.name) ?? [])))));
  });
  for (const gpu of pool.gpus) update(gpu, pool);
  $("boxes-more").hidden = pool.isWhole;
  $("boxes-more").textContent = `Only the first ${pool.gpus.length} GPUs are shown here; dxpu gpu ls shows all.`;
  drawDetail(pool);
}

function boxCard(box, gpus) {
  const title = el("div", { class: "title" },
    el("b", { title: box.name }, box.name),
    el("span", { class: "badge" }, box.kind === "nvlink" ? "NVLink" : "PCIe"),
    el("span", { class: "badge", "data-state": box.state }, box.state));
  return el("div", { class: "box", "data-state": box.state }, title, el("div", { class: "slots" }, ...gpus.map(slotButton)));
}

function slotButton(gpu) {
  const button = el("button", { class: "slot", type: "button", "data-id": gpu.id },
    el("span", { class: "top" }, el("span", {}, String(gpu.slot)), el("span", { class: "pct" })),
    el("span", { class: "what" }));
  button.addEventListener("click", () => {
    chosen = chosen === gpu.id ? null : gpu.id;
    document.dispatchEvent(new CustomEvent("chosen"));
  });
  slots.set(gpu.id, button);
  return button;
}

/** What a slot says in one word: who has it, or what it does. */
function word(gpu, pool) {
  if (gpu.state === "leased") {
    const tenants = new Set(gpu.holders?.map((holder) => pool.leases.get(holder.lease)?.tenant ?? "leased"));
    return tenants.size === 1 ? [...tenants][0] : `${tenants.size} tenants`;
  }
  if (gpu.state !== "free") return state(gpu.state);
  if (gpu.taint) return gpu.taint.drain ? "drained" : "tainted";
  return gpu.spare ? "spare" : "free";
}

function update(gpu, pool) {
  const button = slots.get(gpu.id);
  if (!button) return;
  const pct = gpu.counters?.utilization_pct;
  const text = word(gpu, pool);
  button.dataset.gpu = gpu.state;
  button.dataset.spare = String(gpu.spare);
  button.dataset.taint = String(gpu.taint !== undefined);
  button.style.setProperty("--util", pct ?? 0);
  button.querySelector(".pct").textContent = pct === undefined ? "" : `${pct}%`;
  button.querySelector(".what").textContent = text;
  button.setAttribute("aria-pressed", String(chosen === gpu.id));
  button.setAttribute("aria-label", `GPU ${gpu.id}, ${state(gpu.state)}${gpu.spare ? ", spare" : ""}${gpu.taint ? ", tainted" : ""}`);
  button.title = `${gpu.id} · ${gpu.model} · ${text}`;
}

export function drawDetail(pool) {
  const gpu = pool.gpus.find((candidate) => candidate.id === chosen);
  $("detail").hidden = gpu === undefined;
  for (const [id, button] of slots) button.setAttribute("aria-pressed", String(id === chosen));
  if (gpu === undefined) return;
  const counters = gpu.counters ?? {};
  const shown = (value, unit) => (value === undefined ? "–" : `${value}${unit}`);
  const holders = (gpu.holders ?? []).map((holder) => {
    const lease = pool.leases.get(holder.lease);
    const share = holder.share_milli === 1000 ? "" : ` (${holder.share_milli}/1000)`;
    return `${holder.lease}${share}${lease ? ` · ${lease.tenant} · ${who(lease.owner)}` : ""}`;
  });
  const rows = [
    ["State", state(gpu.state) + (gpu.spare ? ", held as a spare" : "")],
    ["Model", gpu.model],
    ["Memory", counters.memory_used_bytes === undefined ? bytes(gpu.memory_bytes) : `${bytes(counters.memory_used_bytes)} of ${bytes(gpu.memory_bytes)}`],
    ["Utilisation", shown(counters.utilization_pct, " %")],
    ["Temperature", shown(counters.temperature_c, " °C")],
    ["Power", counters.power_mw === undefined ? "–" : `${(counters.power_mw / 1000).toFixed(0)} W`],
    ["Lease", holders.length === 0 ? "–" : holders.join(", ")],
    ["Epoch", `${gpu.epoch}, clean up to ${gpu.cleaned_epoch}`],
    ["UUID", gpu.uuid],
  ];
  if (gpu.nvlink_group !== undefined) rows.push(["NVLink group", String(gpu.nvlink_group)]);
  if (!gpu.health.ok) rows.push(["Health", gpu.health.reason ?? "not healthy"]);
  if (gpu.taint) {
    const what = gpu.taint.drain ? "drained" : "tainted";
    rows.push(["Taint", `${what} by ${who(gpu.taint.by)} ${span(pool.now() - gpu.taint.since_ms)} ago: ${gpu.taint.reason}`]);
  }
  const close = el("button", { type: "button", title: "Close", onclick: () => {
    chosen = null;
    document.dispatchEvent(new CustomEvent("chosen"));
  } }, "×");
  fill($("detail"), [gpu.id, rows], () => [
    el("div", { class: "head" }, el("h2", {}, `GPU ${gpu.id}`), close),
    el("dl", {}, ...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { class: name === "UUID" || name === "Lease" ? "mono" : "" }, value)])),
  ]);
}
