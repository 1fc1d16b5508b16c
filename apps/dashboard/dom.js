// Makes elements, and turns what is shown into what should be shown. Text is always text: nothing that a tenant or a box
// wrote is ever read as HTML.

export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    // The policy forbids style attributes; a script may set properties.
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const el = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

/** Makes the children of `parent` equal to `fresh`. Elements that stay keep their focus, their scrolling and what is
 * selected in them. A child with a `data-key` is found again wherever it has moved. */
export function show(parent, ...fresh) {
  patchChildren(parent, fresh.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
}

const keyOf = (node) => node.dataset?.key;

function patchChildren(parent, fresh) {
  const wantedKeys = new Set(fresh.map(keyOf));
  const keyed = new Map();
  for (const node of [...parent.childNodes].filter(keyOf)) {
    // What goes, goes first: an element that had to be moved past it would lose its focus.
    if (wantedKeys.has(keyOf(node))) keyed.set(keyOf(node), node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const wanted of fresh) {
    const node = typeof wanted === "string" ? document.createTextNode(wanted) : wanted;
    const key = keyOf(node);
    const old = key ? keyed.get(key) : at;
    if (old && isSameKind(old, node)) {
      if (old !== at && old.contains(document.activeElement)) {
        // An element that is moved loses its focus. So those in front of it go; they come back in their turn.
        while (at !== old) {
          const next = at.nextSibling;
          at.remove();
          at = next;
        }
      }
      if (old === at) at = at.nextSibling;
      else parent.insertBefore(old, at);
      patch(old, node);
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const isSameKind = (old, node) => old.nodeName === node.nodeName && keyOf(old) === keyOf(node);

function patch(old, node) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== node.data) old.data = node.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "style" && !node.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of node.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== node.style.cssText) old.style.cssText = node.style.cssText;
  patchChildren(old, [...node.childNodes]);
}

/** What is done when an element with `data-do="name"` is pressed; elements come and go, their names stay. */
const deeds = new Map();

export const on = (name, deed) => deeds.set(name, deed);

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-do]");
  if (pressed) deeds.get(pressed.dataset.do)?.(pressed.dataset, pressed);
});
