// The page: logs in, looks every two seconds and at once when something happened, and draws.

import { Refused, allowed, get, hasToken, list, setToken } from "./api.js";
import { drawChart, percent, sample } from "./chart.js";
import { $, el, fill } from "./dom.js";
import { drawEvents, lastSeen, take } from "./events.js";
import { EXPLAINED_MAX, drawLeases, drawQueue, waitingIn } from "./leases.js";
import { drawDetail, drawLegend, drawTopology } from "./topology.js";
import { who } from "./words.js";

const LOOK_EVERY_MS = 2000;
const EVENTS_WAIT_MS = 25000;
const GPUS_MAX = 4000;
const LEASES_MAX = 4000;

/** What is known of the pool. */
const pool = { gpus: [], boxes: [], leases: new Map(), spares: [], isWhole: true, now: () => Date.now() };
const explanations = new Map();
let mayReadEvents = true;
let wake = () => {};

async function look() {
  const none = { items: [], version: 0, isWhole: true };
  const [me, gpus, boxes, leases] = await Promise.all([
    get("/v1/whoami"),
    allowed(list("/v1/gpus", GPUS_MAX), none),
    allowed(list("/v1/boxes", GPUS_MAX), none),
    allowed(list("/v1/leases", LEASES_MAX), none),
  ]);
  // Everything is told by the manager's clock; this machine's may be hours off.
  const ahead = me.now_ms - Date.now();
  pool.now = () => Date.now() + ahead;
  pool.gpus = gpus.items;
  pool.boxes = boxes.items;
  pool.isWhole = gpus.isWhole && boxes.isWhole;
  pool.leases = new Map(leases.items.map((lease) => [lease.id, lease]));
  $("who").textContent = `${who(me.identity)} (${me.role})`;
  const waiting = waitingIn(pool).slice(0, EXPLAINED_MAX);
  const answers = await Promise.all(waiting.map((lease) => get(`/v1/leases/${lease.id}/explain`).catch(() => null)));
  explanations.clear();
  waiting.forEach((lease, index) => explanations.set(lease.id, answers[index]));
}

function draw() {
  const now = sample(pool);
  drawSummary(now);
  drawTopology(pool);
  drawLeases(pool);
  drawQueue(pool, explanations);
  drawChart();
  drawEvents(mayReadEvents);
}

function drawSummary(now) {
  const count = (test) => pool.gpus.filter(test).length;
  const inState = (name) => count((gpu) => gpu.state === name);
  const ready = pool.boxes.filter((box) => box.state === "ready").length;
  const out = inState("cleaning") + inState("burn_in") + inState("absent");
  const tiles = [
    ["Boxes", `${ready}`, `of ${pool.boxes.length} ready`, null, ready < pool.boxes.length],
    ["GPUs", `${pool.gpus.length}`, pool.isWhole ? "" : "or more", null, false],
    ["Leased", `${inState("leased")}`, "", "leased", false],
    ["Free", `${count((gpu) => gpu.state === "free" && !gpu.spare)}`, "", "free", false],
    ["Spares", `${count((gpu) => gpu.spare)}`, "held back", null, false],
    ["Bad", `${inState("bad")}`, out === 0 ? "" : `and ${out} on the way`, "bad", inState("bad") > 0],
    ["Waiting", `${waitingIn(pool).length}`, "leases", null, false],
    ["Busy", percent(now.busy), "", null, false],
  ];
  fill($("summary"), tiles, () => tiles.map(([label, value, more, state, isAlert]) =>
    el("div", { class: "tile", "data-alert": String(isAlert) },
      el("div", { class: "label" }, state ? el("i", { class: "dot", "data-gpu": state }) : null, label),
      el("div", { class: "value" }, value, " ", el("small", {}, more)))));
}

function standing(state, text) {
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
      if (error instanceof Refused && error.status === 401) return leave("The manager does not know this token any more.");
      standing("trouble", `no answer: ${error.message}`);
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
      drawEvents(true);
      if (page.items.length > 0) wake();
    } catch (error) {
      if (error instanceof Refused && error.status === 403) {
        mayReadEvents = false;
        return;
      }
      if (error instanceof Refused && error.status === 401) return;
      version = null;
      await new Promise((resolve) => setTimeout(resolve, LOOK_EVERY_MS));
    }
  }
}

async function enter() {
  $("login").hidden = true;
  $("pool").hidden = false;
  $("leave").hidden = false;
  drawLegend();
  standing("", "asking…");
  watchPool();
  watchEvents();
}

function leave(problem) {
  setToken(null);
  // A fresh page forgets everything that was shown.
  if (problem) sessionStorage.setItem("dxpu-problem", problem);
  location.reload();
}

async function logIn(text) {
  let token = text.trim();
  if (token.startsWith("{")) {
    token = JSON.parse(token).token ?? "";
    if (token === "") throw new Error("This credential holds a certificate and no token; browsers log in by token.");
  }
  if (token === "") throw new Error("Choose a file or paste a token.");
  setToken(token);
  await get("/v1/whoami");
}

function showLogin() {
  $("login").hidden = false;
  $("login-problem").textContent = sessionStorage.getItem("dxpu-problem") ?? "";
  sessionStorage.removeItem("dxpu-problem");
  $("login-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const file = $("login-file").files[0];
    const typed = $("login-token").value;
    try {
      await logIn(typed !== "" || file === undefined ? typed : await file.text());
      $("login-token").value = "";
      enter();
    } catch (error) {
      setToken(null);
      const isJson = error instanceof SyntaxError;
      $("login-problem").textContent = isJson ? "That file is not a credential." : `${error.message}${error.hint ? `. ${error.hint}` : ""}`;
    }
  });
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  $("theme").textContent = theme;
  try {
    localStorage.setItem("dxpu-theme", theme);
  } catch {
    // A browser that keeps nothing shows the theme until the page is closed.
  }
}

setTheme(THEMES.includes(localStorage.getItem("dxpu-theme")) ? localStorage.getItem("dxpu-theme") : "auto");
$("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf($("theme").textContent) + 1) % THEMES.length]));
$("leave").addEventListener("click", () => leave());
document.addEventListener("chosen", () => drawDetail(pool));
if (hasToken()) enter();
else showLogin();
