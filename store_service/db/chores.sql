-- What time does to tasks, and what is tidied.

-- name: promote_due
-- $1 most tasks, $2 grace ms of a cancel, $3 most crashes, $4 since when something may be due, or null
SELECT tenant_id, task_id, event, worker_id, opened, due_from FROM tenure.promote_due($1, $2, $3, $4)

-- name: forget_claims
-- $1 age in ms, $2 most rows
-- One that a claim has in hand is not old any more.
DELETE FROM tenure.worker_claim WHERE worker_id IN (
  SELECT worker_id FROM tenure.worker_claim WHERE claimed_at < (SELECT tenure.task_now()) - $1::bigint * interval '1 ms' LIMIT $2
  FOR UPDATE SKIP LOCKED)

-- name: queue_figures
-- $1 most lanes whose head is looked at
SELECT ready, leased, other, oldest_ready_ms FROM tenure.queue_figures($1)

-- name: has_other_timeline
-- Whether the database failed over or was restored since its epoch was raised; unknown in a standby.
SELECT coalesce(e.timeline <> tenure.timeline(), false) AS other FROM tenure.epoch e

-- name: removal_figures
-- $1 after which tenant, $2 how many tenants, $3 most tasks of each
SELECT removable, oldest_ms, next_tenant FROM tenure.removal_figures($1, $2, $3)

-- name: purges_waiting
SELECT tenure.purges_waiting() AS waiting

-- name: analyze_outgrown
SELECT tenure.analyze_outgrown()

-- name: ping
SELECT tenure.check_writes() AS one

-- name: notify
-- $1 channel, $2 text
SELECT pg_notify($1, $2)
