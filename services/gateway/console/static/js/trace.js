// Links to the pages of traces, if the gateway's settings have their address.
import { h } from "./dom.js";

let address = null; // with {trace_id}

export const setTraceAddress = (url) => (address = url);

/** The link to a trace, or its id alone; a dash without a trace. */
export function traceLink(id) {
  if (!id) return "–";
  const short = h("code", { title: id }, id.slice(0, 8));
  return address === null ? short : h("a", { href: address.replace("{trace_id}", id), target: "_blank", rel: "noopener" }, short);
}
