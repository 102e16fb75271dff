-- What operators did. In every query the tenant comes first.

-- name: add_audit_line
-- $1 tenant, $2 caller, $3 method, $4 request
SELECT tenure.add_audit_line(tenure.allow($1), $2, $3, $4) AS cursor

-- name: add_audit_outcome
-- $1 tenant, $2 cursor, $3 outcome
INSERT INTO tenure.audit_outcome (tenant_id, cursor, outcome) SELECT tenure.allow($1), $2, $3

-- name: list_audit_lines
-- $1 tenant, $2 cursor of the last one known, $3 page size
SELECT l.tenant_id, l.cursor, l.caller, l.method, l.request, l.at, coalesce(o.outcome, '') AS outcome
FROM tenure.audit_line l LEFT JOIN tenure.audit_outcome o ON o.tenant_id = l.tenant_id AND o.cursor = l.cursor
WHERE l.tenant_id = (SELECT tenure.allow($1)) AND l.cursor > $2 ORDER BY l.cursor LIMIT $3
