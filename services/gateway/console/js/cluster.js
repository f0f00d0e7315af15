// The cluster as it is: nodes, their GPUs, and the instances on them with load and state.
import { badge, byId, empty, h, keyed } from "./dom.js";
import * as format from "./format.js";

const STATE_KIND = { ready: "good", draining: "warn", starting: "info" };

export function showCluster(cluster) {
  const instances = cluster.nodes.flatMap((node) => node.instances);
  const gpus = instances.reduce((sum, instance) => sum + instance.tp_degree, 0);
  byId("cluster-summary").textContent =
    `${cluster.model} on ${format.plural(instances.length, "instance")} of ${format.plural(gpus, "rank")} in all, cell ${cluster.cell}`;
  const nodes = byId("nodes");
  if (cluster.nodes.length === 0) {
    nodes.replaceChildren(h("div", { className: "card grow" }, empty("No instance", "Workers appear here as soon as they have registered on the bus.")));
    return;
  }
  nodes.querySelector(".card.grow")?.remove();
  keyed(nodes, cluster.nodes, (node) => node.name, makeNode, updateNode);
}

function makeNode(node) {
  return h(
    "article",
    { className: "card node", "aria-label": `Node ${node.name}` },
    h("div", { className: "node-head" }, h("h3", {}, node.name), h("span", { className: "muted" })),
    h("div", { className: "instances" }),
  );
}

function updateNode(element, node) {
  const used = node.instances.reduce((sum, instance) => sum + instance.tp_degree, 0);
  element.querySelector(".node-head .muted").textContent =
    node.free_gpus.length ? `${used} of ${used + node.free_gpus.length} in use` : `${used} in use`;
  const free = node.free_gpus.map((gpu) => ({ id: `free-${gpu}`, gpu }));
  keyed(
    element.querySelector(".instances"),
    [...node.instances, ...free],
    (item) => item.id,
    (item) => ("gpu" in item ? h("div", { className: "gpu free" }, `${item.gpu}`) : makeInstance(item)),
    (child, item) => "gpu" in item || updateInstance(child, item),
  );
}

function makeInstance(instance) {
  const names = instance.gpus.length ? instance.gpus.map((gpu) => `GPU ${gpu}`) : Array(instance.tp_degree).fill(instance.device);
  return h(
    "div",
    { className: "instance", "data-instance": instance.id },
    h("div", { className: "instance-head" }, h("span", { className: "instance-name" }, instance.id), h("span", {})),
    h("div", { className: "gpus" }, ...names.map((name) => h("div", { className: "gpu" }, h("span", {}, name)))),
    h("div", { className: "instance-load" }, h("span", {}, `TP ${instance.tp_degree}`), h("span", {})),
  );
}

function updateInstance(element, instance) {
  const load = instance.requests === null ? null : instance.requests / instance.max_batch_requests;
  element.dataset.state = instance.state;
  element.querySelector(".instance-head").lastChild.replaceWith(badge(instance.state, STATE_KIND[instance.state]));
  element.querySelector(".gpus").style.setProperty("--load", load === null ? "0%" : `${Math.min(100, load * 100)}%`);
  element.querySelector(".instance-load").lastChild.textContent =
    load === null ? "" : `${format.plural(instance.requests, "request")} of ${instance.max_batch_requests}`;
}
