// Wiring: which view is shown, and the live feed handed to each.
import { get } from "./api.js";
import { Charts } from "./charts.js";
import { showCluster } from "./cluster.js";
import { byId } from "./dom.js";
import { follow } from "./live.js";
import { showPlans } from "./plans.js";
import { setUpPlayground } from "./playground.js";
import { openRequest } from "./request.js";
import { showRequests } from "./requests.js";

const VIEWS = ["playground", "cluster", "requests", "plans"];
let current = null;
let charts = null; // made when they are first seen: a chart needs its size

function setStatus(text, state) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.dataset.state = state;
}

/** `#requests/ID` is the view `requests` with ID opened. */
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

const history = []; // loads of the last minutes
const LONGEST = 300;
let latest = null;
let shown = { ended: null, plans: null };

function onUpdate(update) {
  const since = history.at(-1)?.t_s ?? 0;
  history.push(...update.loads.filter((load) => load.t_s > since));
  history.splice(0, history.length - LONGEST);
  latest = update;
  setStatus(update.cluster.ready ? "Ready" : update.cluster.reason, update.cluster.ready ? "good" : "bad");
  refresh(false);
}

/** The gateway did not answer: the feed says so, and the next update tries again. */
function later(error) {
  console.debug(error);
  shown = { ended: null, plans: null };
}

function refresh(entered) {
  if (latest === null) return;
  if (current === "cluster") {
    charts ??= new Charts(byId("charts"));
    charts.show(history);
    showCluster(latest.cluster);
  }
  if (current === "requests" && (entered || latest.ended !== shown.ended)) {
    shown.ended = latest.ended;
    showRequests().catch(later);
  }
  if (current === "plans" && (entered || latest.plans !== shown.plans)) {
    shown.plans = latest.plans;
    showPlans().catch(later);
  }
}

addEventListener("hashchange", route);
route();
setUpPlayground(() => get("v1/models"));
follow(onUpdate, () => setStatus("Connection lost", "bad"));
