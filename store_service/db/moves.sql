-- How a tenant moves to another cell: what is asked of the two databases. See the migration `moves`.

-- name: identity
-- Which database this is, whatever address leads to it.
SELECT c.system_identifier || '/' || current_database() AS identity, session_user AS actor FROM pg_control_system() c

-- name: lock_move
-- $1 tenant. One mover of a tenant at a time, for as long as it is connected.
SELECT pg_try_advisory_lock(2, hashtext($1)) AS locked

-- name: find_move
-- $1 tenant. One row: whether it has a row here, and its move, if it ever moved.
SELECT EXISTS (SELECT FROM tenure.tenant t WHERE t.tenant_id = $1) AS lives, m.state, m.other, m.epoch, m.copied
FROM (SELECT) one LEFT JOIN tenure.move m ON m.tenant_id = $1

-- name: begin_arrival
-- $1 tenant, $2 the other database, $3 its epoch there
SELECT tenure.begin_arrival($1, $2, $3) AS outcome

-- name: begin_leaving
-- $1 tenant, $2 the other database
SELECT tenure.begin_leaving($1, $2) AS outcome

-- name: count_leased
-- $1 tenant
SELECT t.leased FROM tenure.tenant t WHERE t.tenant_id = $1

-- name: freeze
-- $1 tenant, $2 who moves it
SELECT tenure.freeze($1, $2) AS done

-- name: under_way
-- Transactions of others in this database. Those that began before a tenant was frozen may not know of it.
SELECT array_agg(l.virtualxid) AS found FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND a.datname = current_database() AND a.usesysid IS NOT NULL
  AND a.pid <> pg_backend_pid()

-- name: moves_under_way
-- $1 most tenants
SELECT tenant_id, state, since_ms, attended FROM tenure.moves_under_way($1)

-- name: moved_tables
SELECT name, columns, reading FROM tenure.moved_tables()

-- name: stage_rows
-- $1 table
SELECT tenure.stage_rows($1) AS done

-- name: store_rows
-- $1 table
SELECT tenure.store_rows($1) AS done

-- name: digest_rows
-- $1 tenant
SELECT name, amount, digest FROM tenure.digest_rows($1)

-- name: end_copy
-- $1 tenant, $2 its epoch here
SELECT tenure.end_copy($1, $2) AS done

-- name: leave
-- $1 tenant, $2 the other database, $3 its epoch there
SELECT tenure.leave($1, $2, $3) AS has_left

-- name: arrive
-- $1 tenant
SELECT tenure.arrive($1) AS done

-- name: abandon_arrival
-- $1 tenant
SELECT tenure.abandon_arrival($1) AS done

-- name: stay
-- $1 tenant
SELECT tenure.stay($1) AS done

-- name: forget_rows
-- $1 tenant, $2 most rows of each table
SELECT tenure.forget_rows($1, $2) AS forgotten
