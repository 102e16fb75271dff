-- Budgets. In every query the tenant comes first. A vector has the six dimensions in their order.

-- name: set_budget_policy
-- $1 tenant, $2 vector of limits or null, $3 window ms, $4 ms for a takeover
SELECT outcome, (changed).tenant_id, (changed).facts AS cursor, (changed).limits, (changed).window_ms, (changed).recovery_ms,
       (changed).window_started_at, (changed).committed, (changed).reserved, (changed).reservations
FROM tenure.set_budget_policy(tenure.allow($1), $2, $3, $4)

-- name: get_budget
-- $1 tenant
SELECT tenant_id, facts AS cursor, limits, window_ms, recovery_ms, window_started_at, committed, reserved, reservations
FROM tenure.budget WHERE tenant_id = (SELECT tenure.allow($1)) AND limits IS NOT NULL

-- name: reserve_budget
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 vector of limits, $7 vector of use so far
SELECT outcome, amount, adopted FROM tenure.reserve_budget(tenure.allow($1), $2, $3, $4, $5, $6, $7)

-- name: settle_budget
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 vector of use so far, $7 digest
SELECT outcome, charged, released FROM tenure.settle_budget(tenure.allow($1), $2, $3, $4, $5, $6, $7)

-- name: list_budget_facts
-- $1 tenant, $2 cursor of the last one known, $3 page size. One row without a cursor where there is no fact.
SELECT coalesce(e.compacted, 0) AS compacted, t.tenant_id, f.cursor, f.kind, f.cause, f.at, f.task_id, f.worker_id, f.token,
       f.amount, f.charged, f.released, f.reservation_age_ms, f.limits, f.window_ms, f.recovery_ms, f.window_started_at,
       f.committed, f.reserved, f.reservations
FROM (SELECT tenure.allow($1) AS tenant_id) t
LEFT JOIN tenure.budget_export e ON e.tenant_id = t.tenant_id
LEFT JOIN LATERAL (
  SELECT x.* FROM tenure.budget_fact x WHERE x.tenant_id = t.tenant_id AND x.cursor > $2 ORDER BY x.cursor LIMIT $3) f ON true
ORDER BY f.cursor

-- name: confirm_budget_export
-- $1 tenant, $2 cursor
SELECT tenure.confirm_budget_export(tenure.allow($1), $2) AS exported

-- name: compact_budget_facts
-- $1 tenant, $2 age in ms, $3 most facts
SELECT compacted, through FROM tenure.compact_budget_facts(tenure.allow($1), $2, $3)

-- name: meter_budget_facts
-- of what was counted: $1 tenants, $2 cursors; of what to hand out: $3 most tenants, $4 most facts of each, $5 for how many ms
SELECT tenant_id, cursor, kind, cause, amount, charged, released, reservation_age_ms, limits, committed, reserved
FROM tenure.meter_budget_facts($1, $2, $3, $4, $5)
