// The cluster: nodes, and the instances on their GPUs with load and state.
import { badge, byId, empty, h, keyed } from "./dom.js";
import * as format from "./format.js";

const STATE_KIND = { ready: "good", draining: "warn", starting: "info", quarantined: "bad" };

export function showCluster(cluster) {
  const count = cluster.nodes.reduce((sum, node) => sum + node.instances.length, 0);
  byId("cluster-summary").textContent = [
    `Model ${cluster.model}`,
    `cell ${cluster.cell}`,
    cluster.policy === null ? "no scheduler leads" : `policy ${cluster.policy}`,
    `${format.plural(count, "instance")} on ${format.plural(cluster.nodes.length, "node")}`,
  ].join(" · ");
  const nodes = byId("nodes");
  nodes.querySelector(".no-node")?.remove();
  keyed(nodes, cluster.nodes, (node) => node.name, makeNode, updateNode);
  if (count === 0) {
    const none = empty("No instance", "Workers appear here once they are registered on the bus.");
    nodes.append(h("div", { className: "card grow no-node" }, none));
  }
}

function makeNode(node) {
  return h(
    "article",
    { className: "card node", "aria-label": `Node ${node.name}` },
    h("h3", {}, node.name),
    h("div", { className: "instances" }),
  );
}

function updateNode(element, node) {
  keyed(element.querySelector(".instances"), node.instances, (instance) => instance.id, makeInstance, updateInstance);
}

function makeInstance(instance) {
  const kind = instance.device === "cpu" ? "CPU slot" : "GPU";
  const ranks = instance.gpus.length ? instance.gpus.map((gpu) => `${kind} ${gpu}`) : Array(instance.tp_degree).fill(instance.device);
  return h(
    "div",
    { className: "instance", "data-instance": instance.id },
    h("div", { className: "instance-head" }, h("span", { className: "instance-name" }, instance.id), h("span", {})),
    h("div", { className: "gpus" }, ...ranks.map((name) => h("div", { className: "gpu" }, h("span", {}, name)))),
    h("div", { className: "instance-load" }, h("span", {}, `TP ${instance.tp_degree}`), h("span", {})),
    h("div", { className: "instance-load" }, h("span", {}, "Recompute step"), h("span", {})),
    h("div", { className: "instance-load" }, h("span", {}, "Prefix hits"), h("span", {})),
  );
}

function updateInstance(element, instance) {
  const known = instance.requests !== null;
  const share = known ? Math.max(instance.requests / instance.max_requests, instance.tokens / instance.max_tokens) : 0;
  const [first, second, third] = element.querySelectorAll(".instance-load");
  element.dataset.state = instance.state;
  element.querySelector(".instance-head").lastChild.replaceWith(badge(instance.state, STATE_KIND[instance.state]));
  element.title = instance.quarantine ?? "";
  element.querySelector(".gpus").style.setProperty("--load", `${Math.min(100, share * 100).toFixed(1)}%`);
  first.lastChild.textContent = known ? `${format.plural(instance.requests, "request")}, ${format.number(instance.tokens)} tokens` : "";
  second.hidden = !known || instance.step_latency_ms === null;
  second.lastChild.textContent = format.duration(instance.step_latency_ms);
  third.hidden = instance.prefix_hit_rate === null;
  third.lastChild.textContent = format.percent(instance.prefix_hit_rate);
}
