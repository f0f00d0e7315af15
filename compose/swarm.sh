#!/usr/bin/env bash
# Deploys the system on a Swarm. Run it on a manager; the variables are those of compose/.env and of the environment.
#
#     compose/swarm.sh deploy                                start the system, or change it
#     compose/swarm.sh upgrade                               bring a running system to another TAG, service by service
#     compose/swarm.sh profile NODE > compose/profile.csv    measure the latency profile on a node for workers
set -euo pipefail
cd "$(dirname "$0")"
if [ -e .env ]; then
  while IFS= read -r line || [ -n "$line" ]; do
    name=${line%%=*}
    [[ $line != *=* || ! $name =~ ^[A-Z][A-Z0-9_]*$ ]] || export "$name=${!name-${line#*=}}"
  done < .env
fi
export STACK=${STACK:-dilaserve} CELL=${CELL:-cell0} IMAGES=${IMAGES:-dilaserve} TAG=${TAG:-0.1.0}

fail() { echo "swarm.sh: $*" >&2; exit 2; }

check_node() { # an unknown name would leave its services pending
  local nodes
  nodes=$(docker node ls --format '{{.Hostname}}')
  [ "$(grep -cxF -- "$1" <<< "$nodes")" = 1 ] || fail "the Swarm needs one node with the name '$1'; it has" $nodes
}

check_nodes() {
  local node
  [ -n "${NODE:-}" ] || fail "NODE is not set: the node that keeps the data"
  [ -n "${NODES:-}" ] || fail "NODES is not set: the nodes for workers, each NAME:GPUS, separated by commas"
  for node in "$NODE" ${NODE_2:-} ${NODE_3:-} $(tr ',' '\n' <<< "$NODES" | sed 's/:[^:]*$//'); do check_node "$node"; done
}

start_stack() { # with these further options of `docker stack deploy`
  local files=(swarm.yml) configs=(nats.conf users.conf engine-proxy.cfg) arguments=("$@")
  if [ -n "${NODE_2:-}" ]; then files+=(swarm-bus-cluster.yml) configs+=(nats-cluster.conf); fi
  if [ -n "${PROFILE:-}" ]; then files+=(swarm-profile.yml) configs+=("$PROFILE"); fi
  CONFIG=$(cat "${configs[@]}" | sha256sum | cut -c1-12)
  export CONFIG
  for file in "${files[@]}"; do arguments+=(--compose-file "$file"); done
  docker stack deploy --with-registry-auth "${arguments[@]}" "$STACK"
}

deploy() {
  check_nodes
  # Images without a registry are those on the nodes.
  case $IMAGES in *[.:]*/*) start_stack --resolve-image changed ;; *) start_stack --resolve-image never ;; esac
}

update() { # waits until every task of the service runs the new image and is healthy, one after the other
  docker service update --quiet --detach=false --with-registry-auth --no-resolve-image "$@"
}

update_workers() { # those that run another image
  local worker
  for worker in $(docker service ls --quiet --filter "label=dilaserve.cell=$CELL"); do
    [ "$(docker service inspect --format '{{.Spec.TaskTemplate.ContainerSpec.Image}}' "$worker")" = "$IMAGES/worker:$TAG" ] ||
      update --image "$IMAGES/worker:$TAG" "$worker"
  done
}

upgrade() { # in the order of docs/operations.md; a stopped worker gives its requests to the others
  check_nodes
  local service
  for service in scheduler predictor; do update --image "$IMAGES/$service:$TAG" "${STACK}_$service"; done
  update_workers
  update --image "$IMAGES/reconfigurator:$TAG" --env-add "DILASERVE_WORKER_IMAGE=$IMAGES/worker:$TAG" "${STACK}_reconfigurator"
  update_workers # those that the reconfigurator started before its own update
  update --image "$IMAGES/gateway:$TAG" "${STACK}_gateway"
  start_stack --resolve-image never # the images are in place: with another digest, every service would start again
}

profile() {
  check_node "$1"
  local name=$STACK-profile state
  docker service create --quiet --detach --name "$name" --constraint "node.hostname == $1" --restart-condition none \
    --no-resolve-image --env NVIDIA_VISIBLE_DEVICES=all --env "DILASERVE_MODEL=${MODEL:-/app/models/demo}" "$IMAGES/worker:$TAG" \
    sh -c "dilaserve profile --model \"\$DILASERVE_MODEL\" --dtype ${DTYPE:-auto} --tp ${TP_DEGREES:-1,2} --threads ${THREADS:-1} --repeats 3 --max-tokens 1024 --out /tmp/profile.csv >&2 && cat /tmp/profile.csv" > /dev/null
  trap "docker service rm $name > /dev/null" EXIT # now, because the name is a local variable
  while true; do
    state=$(docker service ps --format '{{.CurrentState}} {{.Error}}' "$name")
    case $state in Complete*) break ;; Failed* | Rejected* | Shutdown*) docker service logs --raw "$name" >&2 || true; fail "$state" ;; esac
    sleep 1
  done
  docker service logs --raw "$name" 2> /dev/null
}

case ${1:-} in
deploy | upgrade) "$1" ;;
profile) profile "${2:?the node to measure on}" ;;
*) sed -n '2,6s/^# \{0,1\}//p' swarm.sh >&2; exit 2 ;;
esac
