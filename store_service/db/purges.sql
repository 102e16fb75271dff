-- Tombstones that are forgotten for good. Tenants come first.

-- name: confirm_export
-- $1 tenant, $2 cursor, $3 receipt, $4 principal
SELECT outcome, (export).tenant_id, (export).through_cursor, (export).receipt, (export).confirmed_by, (export).confirmed_at
FROM tenure.confirm_export(tenure.allow($1), $2, $3, $4)

-- name: list_unexported_tenants
-- $1 after which tenant, $2 how many to look at
SELECT tenant_id, unexported FROM tenure.list_unexported_tenants($1, $2)

-- name: prepare_purge
-- of the cleanup lease: $1 tenant, $2 owner, $3 principal, $4 token, $5 epoch; $6 request, $7 digest, $8 age in ms, $9 most
-- tombstones, $10 ms for the decision
SELECT outcome, tenure.purge_state(purge, tenure.task_now()) AS state, (purge).tenant_id, (purge).number,
       (purge).prepared_by, (purge).prepared_at, (purge).deadline_at, (purge).tombstones, (purge).first_cursor,
       (purge).last_cursor, (purge).watermark, (purge).fingerprint, (purge).reviewer, (purge).claim_token,
       (purge).claim_expires_at, (purge).decided_by, (purge).decided_at, (purge).rejection
FROM tenure.prepare_purge(tenure.allow($1), $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: list_purges
-- $1 tenant, $2 number of the last one known, $3 page size, $4 states or none
SELECT x.* FROM (
SELECT tenure.purge_state(p, (SELECT tenure.task_now())) AS state, p.tenant_id, p.number, p.prepared_by, p.prepared_at,
       p.deadline_at, p.tombstones, p.first_cursor, p.last_cursor, p.watermark, p.fingerprint, p.reviewer, p.claim_token,
       p.claim_expires_at, p.decided_by, p.decided_at, p.rejection
FROM tenure.purge p WHERE p.tenant_id = (SELECT tenure.allow($1)) AND p.number > $2) x
WHERE cardinality($4::text[]) = 0 OR x.state = ANY ($4) ORDER BY x.number LIMIT $3

-- name: claim_purge
-- $1 tenant, $2 number or 0, $3 principal, $4 for how many ms
SELECT outcome, tenure.purge_state(purge, tenure.task_now()) AS state, (purge).tenant_id, (purge).number,
       (purge).prepared_by, (purge).prepared_at, (purge).deadline_at, (purge).tombstones, (purge).first_cursor,
       (purge).last_cursor, (purge).watermark, (purge).fingerprint, (purge).reviewer, (purge).claim_token,
       (purge).claim_expires_at, (purge).decided_by, (purge).decided_at, (purge).rejection
FROM tenure.claim_purge(tenure.allow($1), $2, $3, $4)

-- name: decide_purge
-- $1 tenant, $2 number, $3 token of the claim or 0, $4 principal, $5 why it is rejected, or null
SELECT outcome, tenure.purge_state(purge, tenure.task_now()) AS state, (purge).tenant_id, (purge).number,
       (purge).prepared_by, (purge).prepared_at, (purge).deadline_at, (purge).tombstones, (purge).first_cursor,
       (purge).last_cursor, (purge).watermark, (purge).fingerprint, (purge).reviewer, (purge).claim_token,
       (purge).claim_expires_at, (purge).decided_by, (purge).decided_at, (purge).rejection
FROM tenure.decide_purge(tenure.allow($1), $2, $3, $4, $5)

-- name: execute_purge
-- of the cleanup lease: $1 tenant, $2 owner, $3 principal, $4 token, $5 epoch; $6 number
SELECT outcome, (evidence).tenant_id, (evidence).number, (evidence).prepared_by, (evidence).prepared_at,
       (evidence).approved_by, (evidence).approved_at, (evidence).executed_by, (evidence).executed_at,
       (evidence).cleanup_token, (evidence).tombstones, (evidence).first_cursor, (evidence).last_cursor,
       (evidence).watermark, (evidence).receipt, (evidence).fingerprint
FROM tenure.execute_purge(tenure.allow($1), $2, $3, $4, $5, $6)

-- name: get_purge_evidence
-- $1 tenant, $2 number
SELECT tenant_id, number, prepared_by, prepared_at, approved_by, approved_at, executed_by, executed_at, cleanup_token,
       tombstones, first_cursor, last_cursor, watermark, receipt, fingerprint
FROM tenure.purge_evidence WHERE tenant_id = (SELECT tenure.allow($1)) AND number = $2
