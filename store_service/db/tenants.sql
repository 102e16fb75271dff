-- Tenants: their policies, and what is held back of their work.

-- name: set_tenant_policy
-- $1 tenant, $2 most outstanding, $3 most leased, $4 retention ms, $5 most bytes of an input, $6 most creations a second or 0
SELECT tenure.set_tenant_policy(tenure.allow($1), $2, $3, $4, $5, $6) AS opened

-- name: get_tenant
-- $1 tenant. A row for each pause, or one with a workflow that is null.
SELECT t.tenant_id, t.max_outstanding, t.max_leased, t.retention_ms, t.max_input_bytes, t.max_creates_per_second, t.outstanding,
       t.leased, p.workflow, p.version, p.actor, p.reason, p.paused_at
FROM tenure.tenant t LEFT JOIN tenure.pause p ON p.tenant_id = t.tenant_id WHERE t.tenant_id = (SELECT tenure.allow($1))

-- name: pause_work
-- $1 tenant, $2 workflow or empty, $3 version or 0, $4 actor, $5 reason, $6 most pauses of a tenant
SELECT tenure.pause_work(tenure.allow($1), $2, $3, $4, $5, $6) AS outcome

-- name: resume_work
-- $1 tenant, $2 workflow or empty, $3 version or 0
SELECT tenure.resume_work(tenure.allow($1), $2, $3) AS opened
