// What happened, newest first, as it happens.

import { $, el, show } from "./dom.js";
import { matches, nothingFound } from "./filter.js";
import { clock, sentence } from "./words.js";

const KEPT = 300;
const events = [];
let isAllowed = true;

const TONES = {
  box_joined: "good", box_returned: "good", gpu_added: "good", gpu_burn_in_passed: "good", gpu_untainted: "good", box_undrained: "good",
  lease_granted: "busy",
  box_dead: "bad", box_revoked: "bad", host_revoked: "bad", host_monitor_silent: "bad", identity_copied: "bad", gpu_bad: "bad", gpu_burn_in_failed: "bad", lease_requeued: "bad", lease_reclaimed: "bad",
  lease_moved: "passing", lease_pending: "passing", lease_expired: "passing", gpu_tainted: "passing", gpu_absent: "passing", box_drained: "passing",
};

export const lastSeen = () => events[0]?.seq ?? 0;

export function take(fresh) {
  for (const event of fresh) events.unshift(event);
  events.length = Math.min(events.length, KEPT);
}

export const forbid = () => {
  isAllowed = false;
};

/** The events about one thing, or null for those who may see none. */
export function eventsAbout(about) {
  if (!isAllowed) return null;
  return events.filter((event) => Object.entries(about).every(([name, of]) => event[name] === of)).slice(0, 30);
}

export const eventItem = (event) => el("li", { "data-tone": TONES[event.kind] ?? "plain", "data-key": String(event.seq) },
  el("time", { class: "faint", datetime: new Date(event.at_ms).toISOString(), title: new Date(event.at_ms).toLocaleString() }, clock(event.at_ms)),
  el("span", { class: "kind" }, sentence(event.kind)),
  el("p", {}, event.message));

export function drawEvents() {
  if (!isAllowed) return show($("events"), el("p", { class: "empty" }, "Events of the whole pool are for viewers, operators and admins."));
  if (events.length === 0) return show($("events"), el("p", { class: "empty" }, "Nothing has happened yet."));
  const found = events.filter((event) => matches(sentence(event.kind), event.message, event.lease, event.gpu, event.box_name, event.tenant));
  if (found.length === 0) return show($("events"), nothingFound("event"));
  show($("events"), el("ol", { class: "events", "data-key": "list" }, found.map(eventItem)));
}
