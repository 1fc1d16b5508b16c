// Light, dark, or as the system says.

import { $ } from "./dom.js";

const THEMES = ["auto", "light", "dark"];
const KEY = "dxpu-theme";
let theme = "auto";

function set(name) {
  theme = name;
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // A browser that keeps nothing shows the theme until the page is closed.
  }
}

export function begin() {
  const kept = localStorage.getItem(KEY);
  set(THEMES.includes(kept) ? kept : "auto");
  $("theme").addEventListener("click", () => set(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
}
