// Asks the manager that served this page. The browser shows the session's cookie, which no script can read; requests that
// change something also show the session's token against forged requests, which only this page has.

const PAGE_ITEMS = 1000;

export class Refused extends Error {
  constructor(status, detail) {
    super(detail.message);
    this.status = status;
    this.code = detail.code;
    this.hint = detail.hint;
  }
}

let csrf = null;

export const setCsrf = (value) => {
  csrf = value;
};

export async function ask(method, path, { body, headers = {} } = {}) {
  const sent = { ...headers };
  if (body !== undefined) sent["content-type"] = "application/json";
  if (method !== "GET" && csrf !== null) sent["x-dxpu-csrf"] = csrf;
  const answer = await fetch(path, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "same-origin",
    redirect: "manual",
  });
  if (answer.type === "opaqueredirect") {
    // Another manager leads now; the page itself is sent there.
    location.reload();
    throw new Error("another manager leads");
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({ error: { code: "", message: `status ${answer.status}`, hint: "" } }));
  if (!answer.ok) throw new Refused(answer.status, told.error);
  return told;
}

export const get = (path) => ask("GET", path);

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

/** Nothing instead of a refusal: a tenant may not see everything. A token that was revoked is no such refusal. */
export async function allowed(promise, otherwise) {
  try {
    return await promise;
  } catch (error) {
    if (error instanceof Refused && error.status === 403 && error.code !== "revoked") return otherwise;
    throw error;
  }
}

/** Whether the session is over. */
export const isOver = (error) => error instanceof Refused && (error.status === 401 || error.code === "revoked");
