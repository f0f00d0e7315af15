// The gateway's API: JSON replies and server-sent events, with an API key where the gateway asks for one.
import { byId } from "./dom.js";

const KEY = "api-key"; // in the session's storage: gone with the tab

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let asking = null; // one dialog, however many calls were refused

/** Resolves when the user has entered a key; says so if there was one before it. */
function askForKey(refused) {
  byId("key-refused").hidden = !refused;
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, byId("key").value.trim());
        byId("key").value = "";
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.showModal();
  });
  return asking;
}

async function send(path, options) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    // A key is itself when encoded; what is none, "dls-…", can so be sent, and is refused.
    const named = key && { Authorization: `Bearer ${encodeURIComponent(key)}` };
    const headers = { ...named, ...(options.body && { "Content-Type": "application/json" }) };
    const reply = await fetch(path, { ...options, headers });
    if (reply.status !== 401) return reply;
    if (key === sessionStorage.getItem(KEY)) await askForKey(Boolean(key));
  }
}

async function check(reply) {
  if (reply.ok) return reply;
  const body = await reply.json().catch(() => null);
  throw new ApiError(reply.status, body?.error?.message ?? `the gateway answered ${reply.status}`);
}

/** The JSON of a GET. Raises: ApiError. */
export async function get(path) {
  return (await check(await send(path, {}))).json();
}

/** Each event's data of a stream of server-sent events, until it ends. Raises: ApiError. */
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
