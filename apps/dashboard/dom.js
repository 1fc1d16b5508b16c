// Makes elements. Text is always text: nothing that a tenant or a box wrote is ever read as HTML.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "text") element.textContent = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Replaces what is inside only if it would read differently, so that selections and scrolling survive. */
export function fill(parent, signature, make) {
  const text = JSON.stringify(signature);
  if (parent.dataset.signature === text) return;
  parent.dataset.signature = text;
  const top = parent.scrollTop;
  parent.replaceChildren(...make());
  parent.scrollTop = top;
}
