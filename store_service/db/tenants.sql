-- Tenants' policies.

-- name: set_tenant_policy
-- $1 tenant, $2 most outstanding, $3 most leased, $4 retention ms
SELECT tenure.set_tenant_policy($1, $2, $3, $4) AS opened

-- name: get_tenant
-- $1 tenant
SELECT tenant_id, max_outstanding, max_leased, retention_ms, outstanding, leased FROM tenure.tenant WHERE tenant_id = $1
