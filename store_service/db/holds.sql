-- What must be kept.

-- name: place_hold
-- $1 tenant, $2 task, $3 reason, $4 principal
SELECT outcome, replayed, (hold).tenant_id, (hold).number, (hold).task_id, (hold).generation, (hold).reason, (hold).placed_by,
       (hold).placed_at, (hold).released_by, (hold).released_at
FROM tenure.place_hold(tenure.allow($1), $2, $3, $4)

-- name: release_hold
-- $1 tenant, $2 number, $3 principal
SELECT outcome, (hold).tenant_id, (hold).number, (hold).task_id, (hold).generation, (hold).reason, (hold).placed_by,
       (hold).placed_at, (hold).released_by, (hold).released_at
FROM tenure.release_hold(tenure.allow($1), $2, $3)

-- name: list_holds
-- $1 tenant, $2 number of the last one known, $3 page size, $4 only active ones
SELECT tenant_id, number, task_id, generation, reason, placed_by, placed_at, released_by, released_at
FROM tenure.hold WHERE tenant_id = (SELECT tenure.allow($1)) AND number > $2 AND NOT ($4 AND released_at IS NOT NULL)
ORDER BY number LIMIT $3

-- name: list_holds_of_task
-- $1 tenant, $2 number of the last one known, $3 page size, $4 only active ones, $5 task
SELECT tenant_id, number, task_id, generation, reason, placed_by, placed_at, released_by, released_at
FROM tenure.hold WHERE tenant_id = (SELECT tenure.allow($1)) AND number > $2 AND NOT ($4 AND released_at IS NOT NULL)
  AND task_id = $5 ORDER BY generation LIMIT $3
