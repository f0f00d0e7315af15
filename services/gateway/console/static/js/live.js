// The live updates: the last minutes, then one update per second. Reconnects after a loss.
import { events } from "./api.js";

const RETRY_MS = 1000;

/** Call `onUpdate` with each update and `onLost` after each loss of the connection. Never returns. */
export async function follow(onUpdate, onLost) {
  for (;;) {
    try {
      for await (const update of events("events")) onUpdate(update);
    } catch (error) {
      console.debug("updates interrupted", error);
    }
    onLost();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
