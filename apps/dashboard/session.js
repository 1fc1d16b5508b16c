// Logging in and out.

import { Refused, ask, get, setCsrf } from "./api.js";
import { $ } from "./dom.js";

const PROBLEM = "dxpu-problem";

/** Who is logged in, and what they may do. */
export let me = null;

function begin(session) {
  me = session;
  setCsrf(session.csrf);
}

/** Whether this browser is logged in already. */
export async function resume() {
  try {
    begin(await get("/v1/session"));
    return true;
  } catch (error) {
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) return false;
    throw error;
  }
}

/** The token in what was typed or in a credential file. */
function tokenIn(text) {
  const typed = text.trim();
  if (typed === "") throw new Error("Choose a credential file or paste a token.");
  if (!typed.startsWith("{")) return typed;
  let credential;
  try {
    credential = JSON.parse(typed);
  } catch {
    throw new Error("This file is not a credential: it is not JSON. Choose the file that `dxpu token create` wrote.");
  }
  if (typeof credential.token === "string" && credential.token !== "") return credential.token;
  if (credential.certificate) {
    throw new Error("This is the credential of a box or host, which has a certificate. People log in with a token: `dxpu token create viewer/NAME --out FILE`.");
  }
  throw new Error("This file holds no token. Choose the file that `dxpu token create` wrote.");
}

async function logIn(text) {
  const token = tokenIn(text);
  if (!/^dxpu-(user|join)\.[!-~]+$/.test(token)) throw new Error("This is not a token of dxpu. A token begins with “dxpu-user.” and has no spaces. Was something else copied, or only a part of it?");
  begin(await ask("POST", "/v1/session", { headers: { authorization: `Bearer ${token}` } }));
}

export async function leave(problem) {
  await ask("DELETE", "/v1/session").catch(() => null);
  // A fresh page forgets everything that was shown.
  if (problem) sessionStorage.setItem(PROBLEM, problem);
  location.reload();
}

const sentence = (text) => (text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}` : "");

/** A problem as a person reads it: what is wrong, and what to do. */
export function told(error) {
  if (error instanceof Refused) return `${sentence(error.message)} ${sentence(error.hint)}`.trim();
  if (error instanceof TypeError) return "The manager does not answer. Check that it runs and that this machine reaches it, then try again.";
  return sentence(error.message);
}

export function showLogin(enter) {
  $("login").hidden = false;
  tell(sessionStorage.getItem(PROBLEM) ?? "");
  sessionStorage.removeItem(PROBLEM);
  $("login-token").focus();
  $("login-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const file = $("login-file").files[0];
    const typed = $("login-token").value;
    $("login-button").disabled = true;
    tell("");
    try {
      await logIn(typed !== "" || file === undefined ? typed : await file.text());
      $("login-form").reset();
      $("login").hidden = true;
      enter();
    } catch (error) {
      tell(told(error));
      $("login-token").focus();
    } finally {
      $("login-button").disabled = false;
    }
  });
}

function tell(problem) {
  $("login-problem").textContent = problem;
  for (const input of [$("login-token"), $("login-file")]) {
    if (problem === "") input.removeAttribute("aria-invalid");
    else input.setAttribute("aria-invalid", "true");
  }
}
