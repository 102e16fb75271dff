-- Budgets. In every query the tenant comes first. A vector has the six dimensions in their order.

-- name: set_budget_policy
-- $1 tenant, $2 vector of limits or null, $3 window ms, $4 ms for a takeover
SELECT tenure.set_budget_policy($1, $2, $3, $4) AS outcome

-- name: get_budget
-- $1 tenant
SELECT tenant_id, facts AS cursor, limits, window_ms, recovery_ms, window_started_at, committed, reserved, reservations
FROM tenure.budget WHERE tenant_id = $1 AND limits IS NOT NULL

-- name: reserve_budget
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 vector of limits, $7 vector of use so far
SELECT outcome, amount, adopted FROM tenure.reserve_budget($1, $2, $3, $4, $5, $6, $7)

-- name: settle_budget
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 vector of use so far, $7 digest
SELECT outcome, charged, released FROM tenure.settle_budget($1, $2, $3, $4, $5, $6, $7)

-- name: list_budget_facts
-- $1 tenant, $2 cursor of the last one known, $3 page size
SELECT tenant_id, cursor, kind, cause, at, task_id, worker_id, token, amount, charged, released, reservation_age_ms, limits,
       window_ms, recovery_ms, window_started_at, committed, reserved, reservations
FROM tenure.budget_fact WHERE tenant_id = $1 AND cursor > $2 ORDER BY cursor LIMIT $3
