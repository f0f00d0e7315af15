// The cluster: nodes, the instances on their GPUs with load, memory and state, and the services and the bus.
import { badge, byId, empty, fillTable, h, keyed } from "./dom.js";
import * as format from "./format.js";

const SERVICE_KIND = { running: "good", standby: "info", silent: "bad" };
const STATE_KIND = { ready: "good", draining: "warn", starting: "info", quarantined: "bad" };

export function showCluster(cluster) {
  const count = cluster.nodes.reduce((sum, node) => sum + node.instances.length, 0);
  byId("cluster-summary").textContent = [
    `Model ${cluster.model}`,
    `cell ${cluster.cell}`,
    cluster.policy === null ? "no scheduler leads" : `policy ${cluster.policy}`,
    `${format.plural(count, "instance")} on ${format.plural(cluster.nodes.length, "node")}`,
  ].join(" · ");
  showServices(cluster.services);
  showStorage(cluster.storage);
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
    ...FACTS.map(([name]) => h("div", { className: "instance-load" }, h("span", {}, name), h("span", {}))),
  );
}

const amount = (used, most, text) => (most ? `${text(used)} of ${text(most)}` : null);
// [name, text of an instance; null if it has none]
const FACTS = [
  ["KV cache", (i) => amount(i.cache_tokens, i.max_cache_tokens, format.number)],
  ["Prefix cache", (i) => amount(i.prefix_tokens, i.max_prefix_tokens, format.number)],
  ["Prefix hits", (i) => (i.prefix_hit_rate === null ? null : format.percent(i.prefix_hit_rate))],
  ["Memory", (i) => amount(i.memory_bytes, i.max_memory_bytes, format.bytes)],
];

function updateInstance(element, instance) {
  const known = instance.requests !== null;
  const share = known ? Math.max(instance.requests / instance.max_requests, instance.tokens / instance.max_tokens) : 0;
  const [first, second, ...others] = element.querySelectorAll(".instance-load");
  element.dataset.state = instance.state;
  element.querySelector(".instance-head").lastChild.replaceWith(badge(instance.state, STATE_KIND[instance.state]));
  element.title = instance.quarantine ?? "";
  element.querySelector(".gpus").style.setProperty("--load", `${Math.min(100, share * 100).toFixed(1)}%`);
  first.lastChild.textContent = known ? `${format.plural(instance.requests, "request")}, ${format.number(instance.tokens)} tokens` : "";
  second.hidden = !known || instance.step_latency_ms === null;
  second.lastChild.textContent = format.duration(instance.step_latency_ms);
  FACTS.forEach(([, fact], i) => {
    const text = fact(instance);
    others[i].hidden = text === null;
    others[i].lastChild.textContent = text ?? "";
  });
}

const SERVICES = [
  ["Service", "", (s) => s.service],
  ["State", "", (s) => badge(s.state === "silent" ? `silent for ${format.age(s.silent_s)}` : s.state, SERVICE_KIND[s.state])],
  ["Memory", "number", (s) => format.bytes(s.memory_bytes)],
  ["Up for", "number narrow-hide", (s) => format.age(s.uptime_s)],
  ["Version", "narrow-hide", (s) => s.version],
  ["Process", "narrow-hide", (s) => s.process],
];
const STREAMS = [
  ["Stream", "", (s) => s.name],
  ["Messages", "number", (s) => format.number(s.messages)],
  ["Size", "number", (s) => format.bytes(s.bytes)],
  ["At most", "number", (s) => (s.max_bytes ? format.bytes(s.max_bytes) : "–")],
];

function showServices(services) {
  fillTable(byId("services"), SERVICES, services, (service) => `${service.service} ${service.process}`);
}

function showStorage(storage) {
  if (storage === null) return;
  const place = byId("storage");
  fillTable(place, STREAMS, storage.streams, (stream) => stream.name);
  const notes = [storage.problem, storage.free_bytes === null ? null : `${format.bytes(storage.free_bytes)} free on its disk`];
  place.querySelector("caption").textContent = notes.filter(Boolean).join(" · ");
}
