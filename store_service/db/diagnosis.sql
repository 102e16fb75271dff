-- What a doctor asks the database, with the rights of whoever connects.

-- name: read_server
SELECT current_setting('server_version_num')::int AS version, pg_is_in_recovery() AS is_replica,
       ARRAY(SELECT s.name FROM pg_settings s WHERE s.setting = 'off'
             AND s.name IN ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum') ORDER BY s.name) AS switched_off,
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS connections,
       (SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend') AS used,
       (SELECT count(*)::int FROM pg_stat_activity WHERE application_name = 'tenure-wakeups') AS stores,
       clock_timestamp() AS now

-- name: read_roles
-- Who connects, whether as more than it needs, and which of the store's roles it may not act as, or are not there.
SELECT r.rolname AS login, r.rolsuper OR r.rolbypassrls AS is_above_rows,
       ARRAY(SELECT n FROM unnest(ARRAY['tenure_app', 'tenure_scheduler', 'tenure_governance', 'tenure_metrics', 'tenure_mover']) n
             WHERE to_regrole(n) IS NULL) AS missing,
       coalesce(pg_has_role(r.rolname, to_regrole('tenure_app'), 'MEMBER'), false) AS is_store
FROM pg_roles r WHERE r.rolname = current_user

-- name: read_horizon
-- How long the oldest snapshot and the oldest prepared transaction are held, and how many slots nobody reads.
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - a.xact_start)), 0)::float8 AS snapshot_seconds,
       (SELECT coalesce(max(extract(epoch FROM clock_timestamp() - p.prepared)), 0)::float8 FROM pg_prepared_xacts p)
         AS prepared_seconds,
       (SELECT count(*)::int FROM pg_replication_slots s WHERE NOT s.active) AS idle_slots
FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL AND a.backend_type = 'client backend'
