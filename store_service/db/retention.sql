-- Removal and tombstones.

-- name: remove_tasks
-- $1 tenant, $2 most tasks
SELECT tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at FROM tenure.remove_tasks(tenure.allow($1), $2)

-- name: list_tombstones
-- $1 tenant, $2 cursor of the last one known, $3 page size
SELECT tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at FROM tenure.tombstone
WHERE tenant_id = (SELECT tenure.allow($1)) AND cursor > $2 ORDER BY cursor LIMIT $3

-- name: get_tombstone
-- $1 tenant, $2 task
SELECT tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at FROM tenure.tombstone
WHERE tenant_id = (SELECT tenure.allow($1)) AND task_id = $2
