// The page: looks every two seconds and at once when something happened, and draws.

import { whenDone } from "./actions.js";
import { Refused, allowed, get, isOver, list } from "./api.js";
import { askMore, drawDetail } from "./detail.js";
import { $, el, show } from "./dom.js";
import { drawEvents, forbid, lastSeen, take } from "./events.js";
import { watchFilter } from "./filter.js";
import { drawHistory, lookBack, watchHistory } from "./history.js";
import { EXPLAINED_MAX, drawLeases, drawQueue, waitingIn } from "./leases.js";
import { leave, me, resume, showLogin, told } from "./session.js";
import { begin as beginTheme } from "./theme.js";
import { drawTopology } from "./topology.js";
import { percent, who } from "./words.js";

const LOOK_EVERY_MS = 2000;
const EVENTS_WAIT_MS = 25000;
const GPUS_MAX = 4000;
const LEASES_MAX = 4000;

/** What is known of the pool. `capacity` is for tenants, who see no boxes. */
const pool = { gpus: [], boxes: [], leases: new Map(), capacity: null, isWhole: true, now: () => Date.now() };
const explanations = new Map();
let isKnown = false;
let wake = () => {};

async function look() {
  const none = null;
  const [who_, gpus, boxes, leases] = await Promise.all([
    get("/v1/whoami"),
    allowed(list("/v1/gpus", GPUS_MAX), none),
    allowed(list("/v1/boxes", GPUS_MAX), none),
    allowed(list("/v1/leases", LEASES_MAX), { items: [] }),
    allowed(lookBack(), none),
  ]);
  // Everything is told by the manager's clock; this machine's may be hours off.
  const ahead = who_.now_ms - Date.now();
  pool.now = () => Date.now() + ahead;
  pool.gpus = gpus?.items ?? [];
  pool.boxes = boxes?.items ?? [];
  pool.isWhole = (gpus?.isWhole ?? true) && (boxes?.isWhole ?? true);
  pool.capacity = boxes === null ? await allowed(get("/v1/capacity"), []) : null;
  pool.leases = new Map(leases.items.map((lease) => [lease.id, lease]));
  const waiting = waitingIn(pool).slice(0, EXPLAINED_MAX);
  const answers = await Promise.all(waiting.map((lease) => get(`/v1/leases/${lease.id}/explain`).catch(() => null)));
  explanations.clear();
  waiting.forEach((lease, index) => explanations.set(lease.id, answers[index]));
  isKnown = true;
}

function draw() {
  if (!isKnown) return;
  drawSummary();
  drawHistory();
  drawTopology(pool);
  drawLeases(pool);
  drawQueue(pool, explanations);
  drawEvents();
  drawDetail(pool);
}

function drawSummary() {
  const tiles = pool.capacity === null ? tilesOfPool() : tilesOfTenant();
  show($("summary"), tiles.map(([name, number, more, state, isAlert]) =>
    el("div", { class: "tile", "data-alert": String(Boolean(isAlert)), "data-key": name },
      el("div", { class: "label" }, state ? el("i", { class: "dot", "data-gpu": state }) : null, name),
      el("div", { class: "value" }, number, " ", more ? el("small", {}, more) : null))));
}

/** Each GPU once: no seats for guests, and of the parts of a GPU the first, which is leased if any of them is. */
function counted(gpus) {
  const whole = (gpu) => `${gpu.box_name} ${gpu.part.of} ${gpu.part.milli}`;
  const isFirst = (gpu) => !gpu.part || gpu.slot === gpu.part.of * Math.floor(1000 / gpu.part.milli);
  const leased = new Set(gpus.filter((gpu) => gpu.part && gpu.state === "leased").map(whole));
  return gpus.filter((gpu) => !gpu.guest && isFirst(gpu)).map((gpu) => gpu.part && leased.has(whole(gpu)) ? { ...gpu, state: "leased" } : gpu);
}

function tilesOfPool() {
  const gpus = counted(pool.gpus);
  const count = (test) => gpus.filter(test).length;
  const inState = (name) => count((gpu) => gpu.state === name);
  const ready = pool.boxes.filter((box) => box.state === "ready").length;
  const out = inState("cleaning") + inState("burn_in") + inState("absent");
  const busy = pool.gpus.map((gpu) => gpu.counters?.utilization_pct).filter((pct) => pct !== undefined);
  return [
    ["Boxes", `${ready}`, `of ${pool.boxes.length} ready`, null, ready < pool.boxes.length],
    ["GPUs", `${gpus.length}`, pool.isWhole ? "" : "or more"],
    ["Leased", `${inState("leased")}`, "", "leased"],
    ["Free", `${count((gpu) => gpu.state === "free" && !gpu.spare && !gpu.taint)}`, "", "free"],
    ["Spares", `${count((gpu) => gpu.spare)}`, "held back"],
    ["Bad", `${inState("bad")}`, out === 0 ? "" : `and ${out} on the way`, "bad", inState("bad") > 0],
    ["Waiting", `${waitingIn(pool).length}`, waitingIn(pool).length === 1 ? "lease" : "leases"],
    ["Busy", percent(busy.length === 0 ? null : busy.reduce((sum, pct) => sum + pct, 0) / busy.length)],
  ];
}

function tilesOfTenant() {
  const sum = (of) => pool.capacity.reduce((total, model) => total + of(model), 0);
  return [
    ["You have", `${sum((model) => model.used_milli) / 1000}`, "GPUs", "leased"],
    ["You could get", `${sum((model) => model.available)}`, "GPUs", "free"],
    ["Waiting", `${waitingIn(pool).length}`, waitingIn(pool).length === 1 ? "lease" : "leases"],
    ["In the pool", `${sum((model) => model.working)}`, "GPUs that work"],
  ];
}

function standing(state, text) {
  if ($("standing").textContent === text) return;
  $("standing").dataset.state = state;
  $("standing").textContent = text;
}

const pause = (ms) => new Promise((resolve) => {
  wake = resolve;
  setTimeout(resolve, ms);
});

async function watchPool() {
  for (;;) {
    try {
      await look();
      draw();
      standing("live", "live");
    } catch (error) {
      if (isOver(error)) return leave(told(error));
      standing("trouble", error instanceof Refused ? told(error) : "the manager does not answer; trying again");
    }
    await pause(LOOK_EVERY_MS);
  }
}

/** Waits at the manager for whatever happens next. */
async function watchEvents() {
  let version = null;
  for (;;) {
    try {
      const wait = version === null ? "" : `&version=${version}&wait_ms=${EVENTS_WAIT_MS}`;
      const page = await get(`/v1/events?limit=1000&after=${lastSeen()}${wait}`);
      take(page.items);
      // A full page is followed by more; otherwise wait for the next change.
      version = page.next === undefined ? page.version : null;
      draw();
      if (page.items.length > 0) wake();
    } catch (error) {
      if (isOver(error)) return;
      if (error instanceof Refused && error.status === 403) return forbid();
      version = null;
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
  }
}

function enter() {
  $("pool").hidden = false;
  $("leave").hidden = false;
  $("who").textContent = `${who(me.identity)} (${me.role})`;
  standing("", "asking…");
  watchFilter(draw);
  watchHistory(draw);
  document.addEventListener("opened", draw);
  whenDone(() => {
    askMore();
    wake();
  });
  watchPool();
  watchEvents();
}

beginTheme();
$("leave").addEventListener("click", () => leave());
try {
  if (await resume()) enter();
  else showLogin(enter);
} catch (error) {
  showLogin(enter);
  $("login-problem").textContent = told(error);
}
