// Boxes and their slots, by rack. For tenants, who see no boxes: what there is of each model.

import { $, el, show } from "./dom.js";
import { isFiltered, matches, nothingFound } from "./filter.js";
import { opener } from "./leases.js";
import { plural, state } from "./words.js";

const STATES = ["free", "leased", "cleaning", "burn_in", "bad", "absent"];

function drawLegend() {
  const items = STATES.map((name) => el("span", {}, el("i", { class: "dot", "data-gpu": name }), state(name)));
  items.splice(1, 0, el("span", {}, el("i", { class: "dot spare" }), "spare"));
  show($("legend"), items);
}

export function drawTopology(pool) {
  if (pool.capacity !== null) return drawCapacity(pool.capacity);
  drawLegend();
  const gpusOf = Map.groupBy(pool.gpus, (gpu) => gpu.box_name);
  const isFound = (box) => {
    const gpus = gpusOf.get(box.name) ?? [];
    return matches(box.name, box.rack, box.kind, box.state, gpus.map((gpu) => [gpu.id, gpu.model, gpu.uuid, state(gpu.state), word(gpu, pool), (gpu.holders ?? []).map((holder) => holder.lease)].flat()).flat());
  };
  const found = pool.boxes.filter(isFound);
  if (pool.boxes.length === 0) return show($("boxes"), howToBegin());
  if (found.length === 0) return show($("boxes"), nothingFound("box"));
  const racks = [...Map.groupBy(found, (box) => box.rack)].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  show($("boxes"), racks.map(([rack, boxes]) =>
    el("div", { class: "rack", "data-key": `rack ${rack}` },
      racks.length > 1 || rack !== "" ? el("h3", {}, rack === "" ? "no rack" : `rack ${rack}`) : null,
      el("div", { class: "boxes" }, boxes.map((box) => boxCard(box, gpusOf.get(box.name) ?? [], pool))))));
  $("boxes-more").hidden = pool.isWhole;
  $("boxes-more").textContent = `Only the first ${pool.gpus.length} GPUs are shown here; dxpu gpu ls shows all.`;
}

function howToBegin() {
  return el("div", { class: "empty" },
    el("p", {}, "No box has joined the pool yet. Make a token for the machine that has GPUs:"),
    el("p", {}, el("code", {}, "dxpu token create box/NAME --out NAME.json")),
    el("p", {}, "Copy the file to that machine and start its agent there. ", el("code", {}, "--soft 2"), " lends GPUs in software:"),
    el("p", {}, el("code", {}, "dxpu box --join-token-file NAME.json")));
}

function boxCard(box, gpus, pool) {
  const standing = box.drain && box.state !== "dead" ? (box.drain.drain ? "draining" : "cordoned") : box.state;
  return el("div", { class: "box", "data-key": box.name, "data-state": box.state },
    el("div", { class: "title" },
      opener("box", box.name),
      el("span", { class: "badge" }, box.kind === "nvlink" ? "NVLink" : "PCIe"),
      el("span", { class: "badge", "data-state": standing }, standing)),
    gpus.length === 0 ? el("p", { class: "empty" }, "It has reported no GPU.") : el("div", { class: "slots" }, gpus.map((gpu) => slot(gpu, pool))));
}

/** What a slot says in one word: who has it, or what it does. */
function word(gpu, pool) {
  if (gpu.state === "leased") {
    const tenants = new Set(gpu.holders?.map((holder) => pool.leases.get(holder.lease)?.tenant ?? "leased"));
    return tenants.size === 1 ? [...tenants][0] : plural(tenants.size, "tenant");
  }
  if (gpu.state !== "free") return state(gpu.state);
  if (gpu.taint) return gpu.taint.drain ? "drained" : "cordoned";
  if (gpu.guest) return "guest seat";
  if (gpu.part) return `${gpu.part.milli}/1000`;
  return gpu.spare ? "spare" : "free";
}

const unseen = (text) => el("span", { class: "unseen" }, text);

function slot(gpu, pool) {
  const pct = gpu.counters?.utilization_pct;
  const text = word(gpu, pool);
  const isDim = isFiltered() && !matches(gpu.id, gpu.model, gpu.uuid, gpu.box_name, state(gpu.state), text, (gpu.holders ?? []).map((holder) => holder.lease));
  return el("button", {
    type: "button", class: "slot", "data-key": gpu.id, "data-id": gpu.id, "data-do": "open", "data-kind": "gpu",
    "data-gpu": gpu.state, "data-spare": String(gpu.spare), "data-taint": String(gpu.taint !== undefined), "data-dim": String(isDim), "--util": pct ?? 0,
    title: `${gpu.id} · ${gpu.model} · ${text}`,
  },
  // What is seen is part of the name that is read out.
  el("span", { class: "top" },
    el("span", {}, unseen(`GPU ${gpu.box_name}/`), String(gpu.slot)),
    pct === undefined ? null : el("span", {}, `${pct}%`, unseen(" busy, "))),
  el("span", { class: "what" }, text),
  text === state(gpu.state) ? null : unseen(`, ${state(gpu.state)}`));
}

function drawCapacity(capacity) {
  $("h-boxes").textContent = "What there is for you";
  if (capacity.length === 0) return show($("boxes"), el("p", { class: "empty" }, "No box has joined the pool yet. Ask an operator of the pool."));
  const cell = (name, text) => el("td", { "data-label": name, class: name === "Model" ? null : "number" }, text);
  const head = ["Model", "Working", "Free", "You have", "Guaranteed", "Limit", "You could get"];
  show($("boxes"), el("table", {},
    el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col", class: name === "Model" ? null : "number" }, name)))),
    el("tbody", {}, capacity.map((of) => el("tr", { "data-key": of.model },
      cell("Model", of.model), cell("Working", String(of.working)), cell("Free", String(of.free)), cell("You have", String(of.used_milli / 1000)),
      cell("Guaranteed", String(of.guaranteed)), cell("Limit", of.limit === undefined ? "none" : String(of.limit)), cell("You could get", String(of.available)))))));
}
