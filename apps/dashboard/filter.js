// One search box for leases, the queue, boxes and events: every word must occur somewhere.

import { $, el, on } from "./dom.js";

const words = () => $("filter").value.toLowerCase().split(/\s+/).filter((word) => word !== "");

export const isFiltered = () => words().length > 0;

/** Whether these texts hold every word that was typed. */
export function matches(...texts) {
  const all = texts.flat().filter(Boolean).join(" ").toLowerCase();
  return words().every((word) => all.includes(word));
}

export const nothingFound = (what) =>
  el("p", { class: "empty" }, `No ${what} matches “${$("filter").value.trim()}”. `, el("button", { type: "button", class: "link", "data-do": "clear-filter" }, "Show all"));

export function watchFilter(draw) {
  $("filter").addEventListener("input", draw);
  on("clear-filter", () => {
    $("filter").value = "";
    $("filter").focus();
    draw();
  });
  document.addEventListener("keydown", (event) => {
    const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName) || document.querySelector("dialog[open]");
    if (event.key === "/" && !isTyping && !$("pool").hidden) {
      event.preventDefault();
      $("filter").focus();
    }
  });
}
