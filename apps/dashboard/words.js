// Numbers and times as people read them.

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function span(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });

export const who = (identity) => identity.replace(/^spiffe:\/\/dxpu\/(tenant\/)?/, "");

/** `gpu_burn_in_passed` as `GPU burn-in passed`. */
export const sentence = (kind) => {
  const text = kind.replaceAll("_", " ").replace("burn in", "burn-in").replace(/^gpu/, "GPU");
  return text.charAt(0).toUpperCase() + text.slice(1);
};

export const state = (name) => name.replace("burn_in", "burn-in");

/** GPUs as people write them: `rack1-a/0 to 7` and `rack2-b/3`. */
export function places(ids) {
  const slots = new Map();
  for (const id of ids) {
    const [box, slot] = id.split("/");
    if (!slots.has(box)) slots.set(box, []);
    slots.get(box).push(Number(slot));
  }
  const parts = [];
  for (const [box, numbers] of slots) {
    numbers.sort((a, b) => a - b);
    for (let from = 0; from < numbers.length; ) {
      let to = from;
      while (numbers[to + 1] === numbers[to] + 1) to += 1;
      parts.push(to - from < 2 ? `${box}/${numbers[from]}` : `${box}/${numbers[from]} to ${numbers[to]}`);
      from = to - from < 2 ? from + 1 : to + 1;
    }
  }
  return parts;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** A field of the API as a label: `memory_bytes` as `Memory`. */
export const label = (name) => sentence(name.replace(/_(bytes|ms|pct)$/, "")).replace(/^Ttl$/, "Lives unrenewed");

/** Any value of the API as text, by the unit in its name. */
export function value(name, of) {
  if (of === null || of === undefined) return "–";
  if (typeof of === "object") return Object.entries(of).map(([key, part]) => `${label(key).toLowerCase()} ${value(key, part)}`).join(", ");
  if (name.endsWith("_bytes")) return bytes(of);
  if (name.endsWith("_ms") && typeof of === "number") return span(of);
  if (name.endsWith("_milli")) return `${of / 1000}`;
  return String(of).replaceAll("_", " ");
}

export const percent = (of) => (of === null || of === undefined ? "–" : `${of.toFixed(0)} %`);

/** A moment of today by its time, another one with its day. */
export function moment(ms) {
  const at = new Date(ms);
  const isToday = at.toDateString() === new Date().toDateString();
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
  return isToday ? time : `${at.toLocaleDateString([], { weekday: "short" })} ${time}`;
}
