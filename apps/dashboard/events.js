// What happened, newest first, as it happens.

import { $, el, fill } from "./dom.js";
import { clock, sentence } from "./words.js";

const KEPT = 300;
const events = [];

const TONES = {
  box_joined: "good", box_returned: "good", gpu_added: "good", gpu_burn_in_passed: "good", gpu_untainted: "good", box_undrained: "good",
  lease_granted: "busy",
  box_dead: "bad", gpu_bad: "bad", gpu_burn_in_failed: "bad", lease_requeued: "bad", lease_reclaimed: "bad",
  lease_moved: "passing", lease_pending: "passing", lease_expired: "passing", gpu_tainted: "passing", gpu_absent: "passing", box_drained: "passing",
};

export const lastSeen = () => events[0]?.seq ?? 0;

export function take(fresh) {
  for (const event of fresh) events.unshift(event);
  events.length = Math.min(events.length, KEPT);
}

export function drawEvents(isAllowed) {
  fill($("events"), [isAllowed, events[0]?.seq ?? 0], () => {
    if (!isAllowed) return [el("p", { class: "empty" }, "Events are for viewers, operators and admins.")];
    if (events.length === 0) return [el("p", { class: "empty" }, "Nothing has happened yet.")];
    return events.map((event) => el("li", { "data-tone": TONES[event.kind] ?? "plain" },
      el("time", { class: "faint", datetime: new Date(event.at_ms).toISOString(), title: new Date(event.at_ms).toLocaleString() }, clock(event.at_ms)),
      el("span", { class: "kind" }, sentence(event.kind)),
      el("p", {}, event.message)));
  });
}
