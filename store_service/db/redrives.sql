-- Failed tasks that are sent back to work.

-- name: redrive_tasks
-- $1 tenant, $2 request, $3 digest, $4 actor, $5 workflow or null, $6 version or null, $7 reasons or null, $8 failed from or
-- null, $9 failed before or null, $10 tasks or null, $11 most tasks, $12 dry run, $13 ms for which a repetition is known
SELECT outcome, task_ids, outcomes, replayed, opened
FROM tenure.redrive_tasks(tenure.allow($1), $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
