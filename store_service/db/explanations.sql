-- Why tasks are where they are, and who asks for work.

-- name: explain_task
-- $1 tenant, $2 task, $3 issuer or null, $4 subject or null, $5 most tasks ahead that are counted
SELECT s.state, s.workflow, s.version, h.at AS since, s.ready, s.ready_at, s.retries, s.crashes, s.worker_id, s.expires_at,
       s.cancel_requested_at, s.cancel_at, s.failed_for, s.ended_at, n.leased, n.max_leased,
       p.actor AS paused_by, p.paused_at, p.reason AS pause_reason, m.changed_at AS moving_since, r.asked_at, a.ahead,
       w.kind AS wait_kind, w.until AS wait_until, w.signal_name, q.questions, (SELECT tenure.task_now()) AS read_at
FROM tenure.task t
JOIN tenure.task_state s ON s.tenant_id = t.tenant_id AND s.task_id = t.task_id
JOIN tenure.tenant n ON n.tenant_id = t.tenant_id
CROSS JOIN LATERAL (
  SELECT x.at FROM tenure.history x WHERE x.tenant_id = t.tenant_id AND x.task_id = t.task_id ORDER BY x.line DESC LIMIT 1
) h
LEFT JOIN tenure.wait w ON s.state = 'WAITING' AND w.tenant_id = t.tenant_id AND w.task_id = t.task_id
LEFT JOIN tenure.move m ON s.ready AND m.tenant_id = t.tenant_id AND m.state = 'DRAINING'
LEFT JOIN LATERAL (
  SELECT max(x.asked_at) AS asked_at FROM unnest(ARRAY[t.tenant_id, '']) f(tenant_id)
  JOIN tenure.registration x ON x.tenant_id = f.tenant_id AND x.workflow = s.workflow AND x.version = s.version
) r ON true
LEFT JOIN LATERAL (
  SELECT x.* FROM tenure.pause x
  WHERE s.ready AND x.tenant_id = t.tenant_id AND x.workflow IN ('', s.workflow) AND x.version IN (0, s.version)
  ORDER BY x.paused_at LIMIT 1
) p ON true
LEFT JOIN LATERAL (
  SELECT count(*)::int AS ahead FROM (
    SELECT x.priority, x.ready_at, x.task_id
    FROM tenure.lane l
    JOIN tenure.task_state x ON x.tenant_id = l.tenant_id AND x.workflow = l.workflow AND x.version = l.version AND x.ready
      AND x.ready_at >= l.ready_from
    WHERE s.ready AND l.tenant_id = s.tenant_id AND l.workflow = s.workflow AND l.version = s.version
    ORDER BY x.priority DESC, x.ready_at, x.task_id LIMIT $5) f
  WHERE (-f.priority::bigint, f.ready_at, f.task_id) < (-s.priority::bigint, s.ready_at, s.task_id)
) a ON true
LEFT JOIN LATERAL (
  SELECT array_agg(x.key ORDER BY x.number) AS questions FROM tenure.input_request x
  WHERE s.state = 'WAITING' AND x.tenant_id = t.tenant_id AND x.task_id = t.task_id AND x.state = 'OPEN'
) q ON true
WHERE t.tenant_id = (SELECT tenure.allow_each(ARRAY[$1::text, '']))[1] AND t.task_id = $2
  AND ($3::text IS NULL OR (t.issuer = $3 AND t.subject = $4))

-- name: record_registrations
-- $1 tenant or empty, $2 workflow, $3 version: arrays, one element a registration, sorted
INSERT INTO tenure.registration (tenant_id, workflow, version, asked_at)
SELECT u.tenant_id, u.workflow, u.version, (SELECT tenure.task_now())
FROM unnest(tenure.allow_each($1), $2::text[], $3::int[]) u(tenant_id, workflow, version)
ON CONFLICT (tenant_id, workflow, version) DO UPDATE SET asked_at = excluded.asked_at

-- name: list_registrations
-- $1 tenant, $2 most
SELECT f.workflow, f.version, max(f.asked_at) AS asked_at
FROM tenure.registration f WHERE f.tenant_id = ANY ((SELECT tenure.allow_each(ARRAY[$1::text, '']))::text[])
GROUP BY f.workflow, f.version ORDER BY f.workflow, f.version LIMIT $2

-- name: forget_registrations
-- $1 age in ms, $2 most
SELECT tenure.forget_registrations($1, $2) AS one
