// The live feed: one update a second, and the last minutes at the start. Mends itself when it breaks.
import { events } from "./api.js";

const RETRY_MS = 1000;

/** Calls `onUpdate` with each update and `onLost` whenever the feed has broken off. Never returns. */
export async function follow(onUpdate, onLost) {
  for (;;) {
    try {
      for await (const update of events("events")) onUpdate(update);
    } catch (error) {
      console.debug("feed interrupted", error);
    }
    onLost();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
