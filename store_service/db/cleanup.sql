-- Who may remove what is over of a tenant.

-- name: list_cleanup_tenants
-- $1 tenants or none, $2 after which, $3 how many to look at
SELECT tenant_id, due_since FROM tenure.list_cleanup_tenants($1, $2, $3)

-- name: claim_cleanup
-- $1 tenant, $2 owner, $3 principal, $4 for how many ms
SELECT outcome, token, epoch, expires_at FROM tenure.claim_cleanup(tenure.allow($1), $2, $3, $4)

-- name: heartbeat_cleanup
-- $1 tenant, $2 owner, $3 principal, $4 token, $5 epoch, $6 for how many ms
SELECT tenure.heartbeat_cleanup(tenure.allow($1), $2, $3, $4, $5, $6) AS expires_at

-- name: release_cleanup
-- $1 tenant, $2 owner, $3 principal, $4 token, $5 epoch
SELECT tenure.release_cleanup(tenure.allow($1), $2, $3, $4, $5) AS released
