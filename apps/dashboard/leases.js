// Leases, and the queue with its reasons.

import { $, el, fill } from "./dom.js";
import { places, span, who } from "./words.js";

const SHOWN_MAX = 200;
export const EXPLAINED_MAX = 8;

export function drawLeases(pool) {
  const order = { granted: 0, releasing: 1, pending: 2 };
  const live = [...pool.leases.values()].filter((lease) => lease.state !== "ended" && lease.state !== "pending");
  live.sort((a, b) => order[a.state] - order[b.state] || b.created_ms - a.created_ms);
  $("leases-count").textContent = live.length === 0 ? "" : `${live.length} with GPUs`;
  const rows = live.slice(0, SHOWN_MAX).map((lease) => ({
    id: lease.id,
    tenant: lease.tenant,
    owner: who(lease.owner),
    state: lease.state,
    gpus: places(lease.grants.map((grant) => grant.gpu)),
    age: span(pool.now() - lease.created_ms),
    left: lease.state === "granted" ? span(lease.expires_ms - pool.now()) : "–",
    note: notes(lease),
  }));
  fill($("leases"), rows, () => {
    if (rows.length === 0) return [el("p", { class: "empty" }, "Nobody has a GPU. To borrow one: ", el("code", {}, "dxpu run --gpus 1 -- PROGRAM"))];
    const head = ["Lease", "Tenant", "State", "GPUs", "Age", "Left", "Note"];
    const isNumber = new Set(["Age", "Left"]);
    return [el("table", {},
      el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { class: isNumber.has(name) ? "number" : null }, name)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {},
        el("td", { class: "mono" }, row.id),
        el("td", { title: row.owner }, row.tenant),
        el("td", {}, el("span", { class: "badge", "data-state": row.state }, row.state)),
        el("td", { class: "text" }, ...(row.gpus.length === 0 ? ["–"] : row.gpus.flatMap((place, index) => [index === 0 ? "" : ", ", el("span", { class: "place" }, place)]))),
        el("td", { class: "number" }, row.age),
        el("td", { class: "number" }, row.left),
        el("td", { class: "text faint" }, row.note)))))];
  });
}

function notes(lease) {
  const parts = [];
  const last = lease.moves?.at(-1);
  if (last) parts.push(`moved from ${last.from}${last.to ? ` to ${last.to}` : ""}: ${last.reason}`);
  if (lease.request.note) parts.push(lease.request.note);
  return parts.join(" · ");
}

export function waitingIn(pool) {
  const waiting = [...pool.leases.values()].filter((lease) => lease.state === "pending");
  return waiting.sort((a, b) => b.request.priority - a.request.priority || a.created_ms - b.created_ms);
}

export function drawQueue(pool, explanations) {
  const waiting = waitingIn(pool);
  $("queue-count").textContent = waiting.length === 0 ? "" : `${waiting.length} waiting`;
  const shown = waiting.slice(0, EXPLAINED_MAX).map((lease) => ({ lease, why: explanations.get(lease.id), since: span(pool.now() - lease.created_ms) }));
  fill($("queue"), [shown, waiting.length], () => {
    if (waiting.length === 0) return [el("p", { class: "empty" }, "Nobody waits.")];
    const items = shown.map(({ lease, why, since }) => el("div", { class: "waiting" },
      el("div", { class: "title" },
        el("b", {}, lease.tenant),
        el("span", {}, wants(lease)),
        el("span", { class: "faint" }, `priority ${lease.request.priority}, for ${since}`)),
      el("div", { class: "mono faint" }, lease.id),
      el("ul", {},
        ...(why?.reasons ?? []).map((text) => el("li", {}, text)),
        ...(why?.remedies ?? []).map((text) => el("li", { class: "remedy" }, text)))));
    const hidden = waiting.length - shown.length;
    if (hidden > 0) items.push(el("p", { class: "faint" }, `and ${hidden} more`));
    return items;
  });
}

function wants(lease) {
  const { gpus, model, share, topology } = lease.request;
  const what = share ? `${share.milli}/1000 of a GPU` : `${gpus} GPU${gpus === 1 ? "" : "s"}`;
  const close = topology === "any" ? "" : topology === "nvlink" ? ", by NVLink" : ", in one box";
  return `wants ${what}${model ? ` of model ${model}` : ""}${close}`;
}
