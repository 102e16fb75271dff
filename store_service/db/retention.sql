-- Removal and tombstones.

-- name: remove_tasks
-- of the cleanup lease: $1 tenant, $2 owner, $3 principal, $4 token, $5 epoch; $6 most tasks
SELECT outcome, (stone).tenant_id, (stone).cursor, (stone).task_id, (stone).tool, (stone).workflow, (stone).version, (stone).state,
       (stone).created_at, (stone).ended_at, (stone).removed_at, (stone).removed_by, (stone).history_lines,
       (stone).history_digest, NULL::bytea AS history
FROM tenure.remove_tasks(tenure.allow($1), $2, $3, $4, $5, $6)

-- name: list_tombstones
-- $1 tenant, $2 cursor of the last one known, $3 page size, $4 with histories, $5 most bytes of them
SELECT tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at, removed_by, history_lines,
       history_digest, CASE WHEN $4 THEN history END AS history
FROM (
  SELECT t.*, sum(octet_length(t.history)) FILTER (WHERE $4) OVER (ORDER BY t.cursor) - octet_length(t.history) AS before
  FROM tenure.tombstone t WHERE t.tenant_id = (SELECT tenure.allow($1)) AND t.cursor > $2 ORDER BY t.cursor LIMIT $3) x
WHERE coalesce(x.before, 0) < $5 ORDER BY cursor

-- name: get_tombstone
-- $1 tenant, $2 task
SELECT tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at, removed_by, history_lines,
       history_digest, history
FROM tenure.tombstone WHERE tenant_id = (SELECT tenure.allow($1)) AND task_id = $2

-- name: get_retention
-- $1 tenant
SELECT t.tenant_id, d.due_since, t.tombstones AS last_cursor, e.through_cursor, e.receipt, e.confirmed_by, e.confirmed_at,
       c.owner_id, c.expires_at,
       (SELECT count(*) FROM tenure.purge p
        WHERE p.tenant_id = t.tenant_id AND p.state = 'PENDING' AND p.deadline_at > n.now) AS purges_waiting,
       (SELECT count(*) FROM tenure.hold h WHERE h.tenant_id = t.tenant_id AND h.released_at IS NULL) AS holds
FROM tenure.tenant t CROSS JOIN (SELECT tenure.task_now() AS now) n
LEFT JOIN tenure.cleanup_lease c ON c.tenant_id = t.tenant_id AND c.expires_at > n.now
LEFT JOIN LATERAL (
  SELECT s.handle_ends_at + t.retention_ms * interval '1 ms' AS due_since FROM tenure.task_state s
  WHERE s.tenant_id = t.tenant_id AND NOT s.held AND s.handle_ends_at <= n.now - t.retention_ms * interval '1 ms'
  ORDER BY s.handle_ends_at LIMIT 1) d ON true
LEFT JOIN LATERAL (
  SELECT x.through_cursor, x.receipt, x.confirmed_by, x.confirmed_at FROM tenure.tombstone_export x
  WHERE x.tenant_id = t.tenant_id ORDER BY x.through_cursor DESC LIMIT 1) e ON true
WHERE t.tenant_id = (SELECT tenure.allow($1))
