#!/bin/sh
# Makes the database cluster at the first start, then runs the command: `postgres` with its options.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  secret=$(mktemp)
  printf '%s\n' "${POSTGRES_PASSWORD:?is not set}" > "$secret"
  initdb --username=postgres --pwfile="$secret" --auth-local=trust --auth-host=scram-sha-256 > /dev/null
  rm "$secret"
  echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
exec "$@" -c listen_addresses='*' -k /tmp
