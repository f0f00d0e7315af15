// Shows the selected view and passes the live updates to it.
import { get } from "./api.js";
import { Charts } from "./charts.js";
import { showCluster } from "./cluster.js";
import { byId } from "./dom.js";
import { follow } from "./live.js";
import { showPlans } from "./plans.js";
import { setUpPlayground } from "./playground.js";
import { openRequest } from "./request.js";
import { setUpRequests, showRequests } from "./requests.js";
import { setTraceAddress } from "./trace.js";
import { showUse } from "./use.js";

const VIEWS = ["playground", "cluster", "requests", "plans"];
let current = null;
let charts = null; // created when first visible: a chart needs its size

function setStatus(text, state) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

/** Show the view that the URL's hash names; `#requests/ID` also opens a request. */
function route() {
  const [name, argument] = location.hash.slice(1).split("/");
  const view = VIEWS.includes(name) ? name : VIEWS[0];
  if (view !== current) {
    for (const other of VIEWS) byId(`view-${other}`).hidden = other !== view;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === `#${view}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${byId(`${view}-title`).textContent} · DiLaServe`;
    if (current !== null) scrollTo(0, 0);
    current = view;
    refresh(true);
  }
  if (view === "requests" && argument) openRequest(argument);
}

const history = []; // loads of the last hour
const HISTORY_S = 3600;
let latest = null;
let shown = { ended: null, plans: null };

function onUpdate(update) {
  const since = history.at(-1)?.t_s ?? 0;
  history.push(...update.loads.filter((load) => load.t_s > since));
  const kept = history.findIndex((load) => load.t_s > history.at(-1).t_s - HISTORY_S);
  history.splice(0, Math.max(0, kept));
  latest = update;
  setTraceAddress(update.cluster.trace_url);
  setStatus(update.cluster.ready ? "Ready" : update.cluster.reason, update.cluster.ready ? "good" : "bad");
  refresh(false);
}

/** Load the view again at the next update, after the gateway did not answer. */
function retryLater(error) {
  console.debug(error);
  shown = { ended: null, plans: null };
}

function refresh(entered) {
  if (latest === null) return;
  if (current === "cluster") {
    charts ??= new Charts(byId("charts"), byId("ranges"));
    charts.show(history);
    showCluster(latest.cluster);
    showUse().catch((error) => console.debug(error));
  }
  if (current === "requests") {
    const ended = entered || latest.ended !== shown.ended;
    shown.ended = latest.ended;
    showRequests(ended).catch(retryLater);
  }
  if (current === "plans" && (entered || latest.plans !== shown.plans)) {
    shown.plans = latest.plans;
    showPlans().catch(retryLater);
  }
}

byId("loading").remove();
addEventListener("hashchange", route);
setUpRequests(() => refresh(true));
route();
setUpPlayground(() => get("v1/models"));
const lost = () => setStatus("Connection lost", "bad");
addEventListener("unreachable", lost);
follow(onUpdate, lost);
