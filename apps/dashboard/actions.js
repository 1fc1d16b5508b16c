// What may be done to leases, boxes and GPUs: each is asked for once more before it is done.

import { ask } from "./api.js";
import { $, el, on, show } from "./dom.js";
import { me, told } from "./session.js";

/** Each: what its button says, what is asked, what will happen, how it is done, whether a reason is asked for. */
const ACTIONS = {
  "lease-release": {
    label: "Release", title: (id) => `Release lease ${id}?`, isHarsh: true,
    what: "Its GPUs are taken away and cleaned. Its program sees a CUDA error and ends.",
    request: (id) => ["DELETE", `/v1/leases/${id}`], done: (id) => `Lease ${id} is released.`,
  },
  "box-cordon": {
    label: "Cordon", title: (id) => `Cordon box ${id}?`, hasReason: true,
    what: "It gets no new leases. The leases that it has stay as they are.",
    request: (id) => ["POST", `/v1/boxes/${id}/cordon`], done: (id) => `Box ${id} gets no new leases.`,
  },
  "box-drain": {
    label: "Drain", title: (id) => `Drain box ${id}?`, hasReason: true, isHarsh: true,
    what: "It gets no new leases, and its leases move to other GPUs. A program without survival sees a CUDA error and has to be started again.",
    request: (id) => ["POST", `/v1/boxes/${id}/drain`], done: (id) => `Box ${id} is being emptied.`,
  },
  "box-uncordon": {
    label: "Uncordon", title: (id) => `Uncordon box ${id}?`,
    what: "It gets leases again.",
    request: (id) => ["POST", `/v1/boxes/${id}/undrain`], done: (id) => `Box ${id} gets leases again.`,
  },
  "gpu-cordon": {
    label: "Cordon", title: (id) => `Cordon GPU ${id}?`, hasReason: true,
    what: "It gets no new leases. The lease that it has stays.",
    request: (id) => ["POST", `/v1/gpus/${id}/taint`], done: (id) => `GPU ${id} gets no new leases.`,
  },
  "gpu-drain": {
    label: "Drain", title: (id) => `Drain GPU ${id}?`, hasReason: true, isHarsh: true,
    what: "It gets no new leases, and the lease that it has moves to another GPU. A program without survival sees a CUDA error and has to be started again.",
    request: (id) => ["POST", `/v1/gpus/${id}/drain`], done: (id) => `GPU ${id} is being emptied.`,
  },
  "gpu-uncordon": {
    label: "Uncordon", title: (id) => `Uncordon GPU ${id}?`,
    what: "It gets leases again.",
    request: (id) => ["POST", `/v1/gpus/${id}/untaint`], done: (id) => `GPU ${id} gets leases again.`,
  },
  "gpu-repair": {
    label: "Repaired", title: (id) => `Is GPU ${id} repaired?`,
    what: "Its box tests it. It is lent again when it has passed the test.",
    request: (id) => ["POST", `/v1/gpus/${id}/repair`], done: (id) => `GPU ${id} is being tested.`,
  },
};

let pending = null;
let opener = null;
let afterwards = () => {};

/** Called after something was done: what is shown is out of date. */
export const whenDone = (callback) => {
  afterwards = callback;
};

export const button = (name, id) =>
  el("button", { type: "button", "data-do": "act", "data-action": name, "data-id": id, class: ACTIONS[name].isHarsh ? "harsh" : null }, ACTIONS[name].label);

/** The actions on a lease that the user may do. */
export function forLease(lease) {
  const may = me.may.release_any || (me.may.release_own && lease.tenant === me.tenant);
  return may && !["ended", "releasing"].includes(lease.state) ? [button("lease-release", lease.id)] : [];
}

export function forBox(box) {
  if (!me.may.operate) return [];
  if (box.drain === undefined) return [button("box-cordon", box.name), button("box-drain", box.name)];
  return [button("box-uncordon", box.name), box.drain.drain ? null : button("box-drain", box.name)];
}

export function forGpu(gpu) {
  if (!me.may.operate) return [];
  const buttons = gpu.state === "bad" ? [button("gpu-repair", gpu.id)] : [];
  if (gpu.taint === undefined) return [...buttons, button("gpu-cordon", gpu.id), button("gpu-drain", gpu.id)];
  return [...buttons, button("gpu-uncordon", gpu.id), gpu.taint.drain ? null : button("gpu-drain", gpu.id)];
}

/** Why there is no button, for a person who looks for one. */
export function whyNone(thing) {
  const needed = thing === "lease" ? "The lease's own tenant or an admin" : "An operator or an admin";
  return el("p", { class: "faint" }, `You are logged in as ${me.role}: you can look at this ${thing}. ${needed} can change it.`);
}

on("act", ({ action, id }, pressed) => {
  pending = { action: ACTIONS[action], id };
  opener = { action, id, element: pressed };
  const { title, what, hasReason, isHarsh, label } = pending.action;
  $("confirm-title").textContent = title(id);
  $("confirm-what").textContent = what;
  $("confirm-reason-row").hidden = !hasReason;
  $("confirm-reason").value = "";
  $("confirm-problem").textContent = "";
  $("confirm-yes").textContent = label;
  $("confirm-yes").classList.toggle("harsh", Boolean(isHarsh));
  $("confirm-yes").disabled = false;
  $("confirm").showModal();
  (hasReason ? $("confirm-reason") : $("confirm-no")).focus();
});

on("confirm-no", () => $("confirm").close());

$("confirm").addEventListener("close", () => {
  // This event comes later than the end it tells of: the next question may be open, or the reader elsewhere.
  if ($("confirm").open) return;
  pending = null;
  if (document.activeElement !== document.body) return;
  // The button may be another element by now, or gone.
  const again = opener && document.querySelector(`[data-action="${opener.action}"][data-id="${CSS.escape(opener.id)}"]`);
  (again ?? $("detail-close")).focus();
});

$("confirm-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (pending === null) return;
  const { action, id } = pending;
  const [method, path] = action.request(id);
  $("confirm-yes").disabled = true;
  try {
    await ask(method, path, action.hasReason ? { body: { reason: $("confirm-reason").value.trim() } } : {});
    $("confirm").close();
    toast(action.done(id));
    afterwards();
  } catch (error) {
    $("confirm-problem").textContent = told(error);
  } finally {
    $("confirm-yes").disabled = false;
  }
});

let toastTimer = 0;

function toast(text) {
  show($("toast"), text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => show($("toast")), 8000);
}
