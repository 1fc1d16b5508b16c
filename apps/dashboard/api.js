// Asks the manager that served this page. The token stays in this tab.

const KEY = "dxpu-token";
const PAGE_ITEMS = 1000;

export class Refused extends Error {
  constructor(status, detail) {
    super(detail.message);
    this.status = status;
    this.hint = detail.hint;
  }
}

let token = sessionStorage.getItem(KEY);

export const hasToken = () => token !== null;

export function setToken(value) {
  token = value;
  if (value === null) sessionStorage.removeItem(KEY);
  else sessionStorage.setItem(KEY, value);
}

export async function get(path, signal) {
  const answer = await fetch(path, {
    headers: { authorization: `Bearer ${token}` },
    cache: "no-store",
    redirect: "manual",
    signal,
  });
  if (answer.type === "opaqueredirect") {
    // Another manager leads now; the page itself is sent there.
    location.reload();
    throw new Error("another manager leads");
  }
  const body = await answer.json().catch(() => ({ error: { message: `status ${answer.status}`, hint: "" } }));
  if (!answer.ok) throw new Refused(answer.status, body.error);
  return body;
}

/** Items of a list, page by page, at most `most` of them. */
export async function list(path, most) {
  const items = [];
  let after = null;
  let version = 0;
  const join = path.includes("?") ? "&" : "?";
  while (items.length < most) {
    const begin = after === null ? "" : `&after=${encodeURIComponent(after)}`;
    const page = await get(`${path}${join}limit=${PAGE_ITEMS}${begin}`);
    items.push(...page.items);
    version = page.version;
    if (page.next === undefined) return { items, version, isWhole: true };
    after = page.next;
  }
  return { items, version, isWhole: false };
}

/** Nothing instead of a refusal: not everybody may see everything. */
export async function allowed(promise, otherwise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof Refused && error.status === 403) return otherwise;
    throw error;
  }
}
