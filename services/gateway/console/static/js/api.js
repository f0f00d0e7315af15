// The gateway's API: JSON replies and server-sent events, with an API key if the gateway requires one.
import { byId } from "./dom.js";

const KEY = "api-key"; // in the session storage, which ends with the tab

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let prompting = null; // the open dialog; concurrent calls share it

/** Resolve when the user has entered a key; `refused`: the previous key was refused. */
function promptForKey(refused) {
  byId("key-refused").hidden = !refused;
  prompting ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, byId("key").value.trim());
        byId("key").value = "";
        prompting = null;
        resolve();
      },
      { once: true },
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.showModal();
  });
  return prompting;
}

async function send(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    // Encoding leaves a valid key unchanged and makes an invalid one, such as "dls-…", a valid header.
    const authorization = key && { Authorization: `Bearer ${encodeURIComponent(key)}` };
    const headers = { ...authorization, ...(options.body && { "Content-Type": "application/json" }) };
    const reply = await fetch(path, { ...options, headers }).catch((error) => {
      if (error.name === "AbortError") throw error;
      dispatchEvent(new Event("unreachable"));
      throw new ApiError(0, "cannot reach the gateway");
    });
    if (reply.status !== 401) return reply;
    if (key === sessionStorage.getItem(KEY)) await promptForKey(Boolean(key));
  }
}

async function check(reply) {
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  throw new ApiError(reply.status, body?.error?.message ?? `the gateway returned status ${reply.status}`);
}

/** The JSON of a GET. Raises: ApiError. */
export async function get(path) {
  return (await check(await send(path, {}))).json();
}

/** The data of each server-sent event, until the stream ends. Raises: ApiError. */
export async function* events(path, { body, signal } = {}) {
  const options = body ? { method: "POST", body: JSON.stringify(body), signal } : { signal };
  const reply = await check(await send(path, options));
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (pending + value).split("\n\n");
    pending = parts.pop();
    for (const part of parts) {
      const data = part.startsWith("data: ") ? part.slice(6) : null;
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}
