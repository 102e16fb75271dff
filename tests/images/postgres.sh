#!/bin/sh
# Postgres as user 999 with a read-only root, by the settings of the official image: POSTGRES_USER, _PASSWORD, _DB, PGDATA.
set -eu
if [ ! -e "$PGDATA" ]; then
  growing="$PGDATA.growing"
  rm -rf "$growing"
  printf %s "$POSTGRES_PASSWORD" > /tmp/password
  initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 \
    --pgdata="$growing" > /dev/null
  rm /tmp/password
  echo "host all all all scram-sha-256" >> "$growing/pg_hba.conf"
  echo "CREATE DATABASE \"$POSTGRES_DB\"" | postgres --single -D "$growing" postgres > /dev/null
  mv "$growing" "$PGDATA"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
