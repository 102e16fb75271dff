-- Tenants' policies.

-- name: set_tenant_policy
-- $1 tenant, $2 most outstanding, $3 most leased, $4 retention ms, $5 most bytes of an input, $6 most creations a second or 0
SELECT tenure.set_tenant_policy($1, $2, $3, $4, $5, $6) AS opened

-- name: get_tenant
-- $1 tenant
SELECT tenant_id, max_outstanding, max_leased, retention_ms, max_input_bytes, max_creates_per_second, outstanding, leased FROM tenure.tenant WHERE tenant_id = $1
