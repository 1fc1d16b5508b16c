// One lease, box or GPU in detail, with what may be done to it. It goes on being up to date while it is open.

import { forBox, forGpu, forLease, whyNone } from "./actions.js";
import { get } from "./api.js";
import { $, el, on, show } from "./dom.js";
import { eventItem, eventsAbout } from "./events.js";
import { opener, reasons, wants } from "./leases.js";
import { bytes, label, moment, percent, span, state, value, who } from "./words.js";

let open = null;
let opened = null;
/** What was asked for besides: why a lease waits, how well it is protected. */
let more = {};

const row = (name, ...content) => [el("dt", {}, name), el("dd", {}, ...content)];

on("open", ({ kind, id }, pressed) => {
  if (!$("detail").open) opened = { kind, id, element: pressed };
  open = { kind, id };
  more = {};
  document.dispatchEvent(new CustomEvent("opened"));
  if (!$("detail").open) $("detail").showModal();
  $("detail-body").scrollTop = 0;
  $("detail-close").focus();
  askMore();
});

on("close", () => $("detail").close());

$("detail").addEventListener("close", () => {
  open = null;
  // The browser has given the focus back by itself when it could, and this event comes later: by now the reader may be elsewhere.
  if (document.activeElement !== document.body) return;
  const again = opened?.element.isConnected ? opened.element : document.querySelector(`[data-kind="${opened?.kind}"][data-id="${CSS.escape(opened?.id ?? "")}"]`);
  again?.focus();
});

$("detail").addEventListener("click", (event) => {
  // A click beside the dialog is a click on its backdrop.
  if (event.target === $("detail")) $("detail").close();
});

/** Looking at a lease by its own address renews it, if the one who looks may; the list does not. So nothing here asks
 * for the lease itself. */
export async function askMore() {
  if (open?.kind !== "lease") return;
  const { id } = open;
  const [why, protection] = await Promise.all([
    get(`/v1/leases/${id}/explain`).catch(() => null),
    get(`/v1/leases/${id}/protection`).catch(() => null),
  ]);
  if (open?.id !== id) return;
  more = { why, protection };
  document.dispatchEvent(new CustomEvent("opened"));
}

export function drawDetail(pool) {
  if (open === null) return;
  const { kind, id } = open;
  const found = { lease: () => pool.leases.get(id), box: () => pool.boxes.find((box) => box.name === id), gpu: () => pool.gpus.find((gpu) => gpu.id === id) }[kind]();
  $("detail-title").textContent = `${{ lease: "Lease", box: "Box", gpu: "GPU" }[kind]} ${id}`;
  if (found === undefined) return show($("detail-body"), el("p", { class: "empty" }, "It is gone. The events tell what became of it."));
  show($("detail-body"), { lease: ofLease, box: ofBox, gpu: ofGpu }[kind](found, pool));
}

function actions(buttons, thing) {
  return buttons.length === 0 ? whyNone(thing) : el("div", { class: "actions" }, buttons);
}

/** Fields of a request that have no row of their own: also those that a newer manager knows. */
const KNOWN = new Set(["tenant", "note", "survive", "class"]);

function ofLease(lease, pool) {
  const { request } = lease;
  const asked = Object.entries(request).filter(([name]) => !KNOWN.has(name));
  const links = more.protection?.links ?? [];
  const protectedBy = links.map((link) => `${link.gpu}: ${state(link.state)}${link.why ? ` (${link.why})` : ""}`).join(", ");
  const isOver = ["ended", "releasing"].includes(lease.state);
  return [
    isOver ? null : actions(forLease(lease), "lease"),
    el("dl", {},
      row("State", el("span", { class: "badge", "data-state": lease.state }, lease.state), lease.ended ? ` ${lease.ended.reason}` : ""),
      row("Tenant", lease.tenant),
      row("Holder", who(lease.owner)),
      row("Note", request.note || "–"),
      row("Class", request.class ?? "dedicated"),
      row("Age", `${span(pool.now() - lease.created_ms)}, since ${moment(lease.created_ms)}`),
      lease.granted_ms ? row("Granted", `after ${span(lease.granted_ms - lease.created_ms)} of waiting`) : null,
      lease.state === "granted" ? row("Ends", `in ${span(lease.expires_ms - pool.now())}, unless it is renewed`) : null,
      row("GPUs", lease.grants.length === 0 ? wants(lease) : lease.grants.map((grant) => el("div", {}, pool.capacity === null ? opener("gpu", grant.gpu) : el("span", { class: "mono" }, grant.gpu), ` ${grant.model}`))),
      row("Protection", request.survive && request.survive !== "none" ? protectedBy || "asked for; its program has not reported yet" : "none: its program has to be started again when its GPU fails"),
      lease.moves?.length ? row("Moves", lease.moves.map((move) => el("div", {}, `${moment(move.at_ms)}: ${move.from} to ${move.to ?? "nothing yet"}, because ${move.reason}`))) : null),
    more.why && lease.state === "pending" ? [el("h3", {}, "Why it waits"), reasons(more.why)] : null,
    el("h3", {}, "What was asked for"),
    el("dl", {}, asked.map(([name, of]) => row(label(name), value(name, of)))),
    events({ lease: lease.id }),
  ];
}

function taint(what, of, pool) {
  const because = of.reason ? `: ${of.reason}` : "";
  return `${what} by ${who(of.by)} ${span(pool.now() - of.since_ms)} ago${because}`;
}

function ofBox(box, pool) {
  const gpus = pool.gpus.filter((gpu) => gpu.box_name === box.name);
  const leases = new Set(gpus.flatMap((gpu) => (gpu.holders ?? []).map((holder) => holder.lease)));
  return [
    actions(forBox(box), "box"),
    el("dl", {},
      row("State", el("span", { class: "badge", "data-state": box.state }, box.state)),
      box.drain ? row(box.drain.drain ? "Drained" : "Cordoned", taint(box.drain.drain ? "drained" : "cordoned", box.drain, pool)) : null,
      row("Rack", box.rack || "–"),
      row("Kind", box.kind === "nvlink" ? "NVLink" : "PCIe"),
      row("Last heard", `${span(pool.now() - box.last_seen_ms)} ago`),
      row("Addresses", box.paths.length === 0 ? "–" : box.paths.join(", ")),
      row("GPUs", gpus.length === 0 ? "–" : gpus.map((gpu) => el("div", {}, opener("gpu", gpu.id), ` ${gpu.model}, ${state(gpu.state)}`))),
      row("Leases", leases.size === 0 ? "none" : [...leases].map((id) => el("div", {}, opener("lease", id), ` ${pool.leases.get(id)?.tenant ?? ""}`)))),
    events({ box_name: box.name }),
  ];
}

function ofGpu(gpu, pool) {
  const counters = gpu.counters ?? {};
  const holders = gpu.holders ?? [];
  const lent = (holder) => el("div", {}, opener("lease", holder.lease), ` ${pool.leases.get(holder.lease)?.tenant ?? ""}${holder.share_milli === 1000 || gpu.guest ? "" : `, ${holder.share_milli}/1000`}`);
  return [
    actions(forGpu(gpu), "GPU"),
    el("dl", {},
      row("State", el("span", { class: "badge", "data-state": gpu.state }, state(gpu.state)), gpu.spare ? " held as a spare" : ""),
      gpu.health.ok ? null : row("Health", gpu.health.reason ?? "not healthy"),
      gpu.taint ? row(gpu.taint.drain ? "Drained" : "Cordoned", taint(gpu.taint.drain ? "drained" : "cordoned", gpu.taint, pool)) : null,
      row("Lease", holders.length === 0 ? "–" : holders.map(lent)),
      row("Box", opener("box", gpu.box_name)),
      gpu.guest ? row("Seat", `for guests, on the GPU of slot ${gpu.guest.of}`) : null,
      gpu.part ? row("Part", `${gpu.part.milli}/1000 of GPU ${gpu.part.of}`) : null,
      row("Model", gpu.model),
      row("Memory", counters.memory_used_bytes === undefined ? bytes(gpu.memory_bytes) : `${bytes(counters.memory_used_bytes)} of ${bytes(gpu.memory_bytes)}`),
      row("Utilisation", percent(counters.utilization_pct)),
      row("SM activity", percent(counters.sm_activity_pct)),
      row("SM occupancy", percent(counters.sm_occupancy_pct)),
      row("DRAM activity", percent(counters.dram_activity_pct)),
      row("Temperature", counters.temperature_c === undefined ? "–" : `${counters.temperature_c} °C`),
      row("Power", counters.power_mw === undefined ? "–" : `${(counters.power_mw / 1000).toFixed(0)} W`),
      gpu.nvlink_group === undefined ? null : row("NVLink group", String(gpu.nvlink_group)),
      row("Epoch", `${gpu.epoch}, clean up to ${gpu.cleaned_epoch}`),
      row("UUID", el("span", { class: "mono" }, gpu.uuid))),
    events({ gpu: gpu.id }),
  ];
}

function events(about) {
  const all = eventsAbout(about);
  return all === null ? null : [el("h3", {}, "Events"), all.length === 0 ? el("p", { class: "empty" }, "Nothing that is still remembered.") : el("ol", { class: "events" }, all.map(eventItem))];
}
