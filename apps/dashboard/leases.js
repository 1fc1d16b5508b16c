// Leases, and the queue with its reasons.

import { $, el, show } from "./dom.js";
import { isFiltered, matches, nothingFound } from "./filter.js";
import { places, plural, span, who } from "./words.js";

const SHOWN_MAX = 200;
export const EXPLAINED_MAX = 8;

const isFound = (lease) => matches(lease.id, lease.tenant, who(lease.owner), lease.state, lease.model, lease.request.note, lease.grants.map((grant) => grant.gpu));

export const opener = (kind, id, text = id) => el("button", { type: "button", class: "link mono", "data-do": "open", "data-kind": kind, "data-id": id }, text);

export function drawLeases(pool) {
  const order = { granted: 0, parked: 1, releasing: 2 };
  const live = [...pool.leases.values()].filter((lease) => lease.state in order);
  live.sort((a, b) => order[a.state] - order[b.state] || b.created_ms - a.created_ms);
  const found = live.filter(isFound);
  $("leases-count").textContent = live.length === 0 ? "" : isFiltered() ? `${found.length} of ${live.length}` : String(live.length);
  if (live.length === 0) {
    return show($("leases"), el("p", { class: "empty" }, "Nobody has a GPU. To borrow one and run a program on it: ", el("code", {}, "dxpu run --gpus 1 -- ./program")));
  }
  if (found.length === 0) return show($("leases"), nothingFound("lease"));
  const head = ["Lease", "Tenant", "State", "GPUs", "Age", "Left", "Note"];
  const isNumber = new Set(["Age", "Left"]);
  const cell = (name, ...content) => el("td", { "data-label": name, class: isNumber.has(name) ? "number" : ["GPUs", "Note"].includes(name) ? "text" : null }, ...content);
  const row = (lease) => el("tr", { "data-key": lease.id },
    cell("Lease", opener("lease", lease.id)),
    cell("Tenant", lease.tenant),
    cell("State", el("span", { class: "badge", "data-state": lease.state }, lease.state)),
    cell("GPUs", lease.grants.length === 0 ? "–" : places(lease.grants.map((grant) => grant.gpu)).flatMap((place, index) => [index === 0 ? "" : ", ", el("span", { class: "place" }, place)])),
    cell("Age", span(pool.now() - lease.created_ms)),
    cell("Left", lease.state === "granted" ? span(lease.expires_ms - pool.now()) : "–"),
    cell("Note", notes(lease) || "–"));
  show($("leases"),
    el("table", {},
      el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col", class: isNumber.has(name) ? "number" : null }, name)))),
      el("tbody", {}, found.slice(0, SHOWN_MAX).map(row))),
    found.length > SHOWN_MAX ? el("p", { class: "faint" }, `Only the first ${SHOWN_MAX} are shown here: search for others, or use dxpu lease ls.`) : null);
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
  const found = waiting.filter(isFound);
  $("queue-count").textContent = waiting.length === 0 ? "" : `${waiting.length} waiting`;
  if (waiting.length === 0) return show($("queue"), el("p", { class: "empty" }, "Nobody waits: each lease has its GPUs."));
  if (found.length === 0) return show($("queue"), nothingFound("waiting lease"));
  const shown = found.slice(0, EXPLAINED_MAX);
  show($("queue"),
    shown.map((lease) => {
      const why = explanations.get(lease.id);
      return el("div", { class: "waiting", "data-key": lease.id },
        el("div", { class: "title" }, el("b", {}, lease.tenant), el("span", {}, wants(lease)), el("span", { class: "faint" }, `priority ${lease.request.priority}, for ${span(pool.now() - lease.created_ms)}`)),
        opener("lease", lease.id),
        reasons(why));
    }),
    found.length > shown.length ? el("p", { class: "faint" }, `and ${plural(found.length - shown.length, "more", "more")}`) : null);
}

export const reasons = (why) =>
  why && why.reasons.length + why.remedies.length > 0
    ? el("ul", { class: "reasons" }, why.reasons.map((text) => el("li", {}, text)), why.remedies.map((text) => el("li", { class: "remedy" }, text)))
    : null;

export function wants(lease) {
  const { gpus, model, share, topology } = lease.request;
  const what = share ? `${share.milli}/1000 of a GPU` : plural(gpus, "GPU");
  const close = topology === "any" ? "" : topology === "nvlink" ? ", by NVLink" : ", in one box";
  return `wants ${what}${model ? ` of model ${model}` : ""}${close}`;
}
