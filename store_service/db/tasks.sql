-- What callers do with tasks. In every query the tenant comes first.

-- name: create_tasks
-- $1 tenant, $2 task, $3 request, $4 digest, $5 number of the contract, $6 priority, $7 media type, $8 input, $9 abandon ms,
-- $10 reference or null: arrays, one element an item; $11 tool, $12 workflow, $13 version, $14 issuer, $15 subject,
-- $16 capabilities, $17 output schema, $18 ttl ms, $19 poll ms, $20 deadline ms, $21 trace parent, $22 trace state, $23 baggage:
-- arrays, one element a contract; $24 item, $25 key, $26 response: arrays, one element an early answer; $27 item, $28 name:
-- arrays, one element a question asked before
SELECT ordinal, outcome, task_id, created_at, opened
FROM tenure.create_tasks(
  tenure.allow_each($1), $2::text::uuid[], $3, $4, $5::text::int[], $6::text::int[], $7, $8, $9::text::bigint[], $10, $11, $12,
  $13::text::int[], $14, $15, $16, $17, $18::text::bigint[], $19::text::bigint[], $20::text::bigint[], $21, $22, $23,
  $24, $25, $26, $27, $28)
ORDER BY ordinal

-- name: get_tasks
-- $1 tenant, $2 task, $3 issuer or null, $4 subject or null, $5 view, $6 number of the report after which all are read, or
-- null for the last one: arrays, one element an item; $7 most bytes of the answer
-- An item past those bytes comes with fits = false and without whatever may be large; the first always fits.
SELECT f.ordinal, f.tenant_id, f.task_id, f.tool, f.workflow, f.version, f.issuer, f.subject,
       CASE WHEN f.fits THEN f.client_capabilities END AS client_capabilities,
       CASE WHEN f.fits THEN f.output_schema END AS output_schema,
       f.ttl_ms, f.poll_interval_ms, f.execution_deadline_ms, f.trace_parent, f.trace_state,
       CASE WHEN f.fits THEN f.baggage END AS baggage, f.priority, f.created_at, f.state, f.changed_at,
       f.ended_at, f.redriven_at, f.change, f.cancel_requested, f.attempts, f.crashes, f.retries, f.checkpoints, f.worker_id,
       f.token, f.expires_at, f.sequences, f.vals, f.totals, f.messages, f.input_media_type,
       CASE WHEN f.fits AND f.view >= 3 THEN f.input END AS input,
       f.media_type, CASE WHEN f.fits THEN f.data END AS data, f.error_code, f.error_message, f.failed_for, f.fits,
       (SELECT tenure.task_now()) AS read_at,
       f.forked_from, f.forked_checkpoints, f.wait_step, f.wait_kind, f.wait_until, f.signal_name,
       f.keys, f.methods, f.asked_at, CASE WHEN f.fits THEN f.params END AS params
FROM (
  SELECT u.ordinal, u.view, t.tenant_id, t.task_id, t.tool, t.workflow, t.version, t.issuer, t.subject, t.client_capabilities,
         t.output_schema, t.ttl_ms, t.poll_interval_ms, t.execution_deadline_ms, t.trace_parent, t.trace_state,
         t.baggage, t.priority, t.created_at,
         s.state, s.changed_at, s.ended_at, s.redriven_at, s.change,
         s.cancel_requested_at IS NOT NULL AS cancel_requested, s.attempts,
         s.crashes, s.retries, s.checkpoints, s.worker_id, s.token, s.expires_at, p.sequences, p.vals, p.totals, p.messages,
         t.media_type AS input_media_type, t.input, o.media_type, o.data, o.error_code, o.error_message, s.failed_for,
         t.forked_from, t.forked_checkpoints, w.step AS wait_step, w.kind AS wait_kind, w.until AS wait_until, w.signal_name,
         q.keys, q.methods, q.asked_at, q.params,
         u.ordinal = 1 OR sum(
           octet_length(concat(t.tool, t.workflow, t.issuer, t.subject, t.trace_parent, t.trace_state, t.baggage, o.error_message))
           + octet_length(t.client_capabilities) + octet_length(t.output_schema) + coalesce(octet_length(o.data), 0)
           + coalesce(p.bytes, 0) + coalesce(q.bytes, 0)
           + CASE WHEN u.view >= 3 THEN octet_length(t.input) ELSE 0 END) OVER (ORDER BY u.ordinal) <= $7 AS fits
  FROM unnest(tenure.allow_each($1), $2::uuid[], $3::text[], $4::text[], $5::text::int[], $6::text::bigint[])
       WITH ORDINALITY u(tenant_id, task_id, issuer, subject, view, reports_after, ordinal)
  JOIN tenure.task t ON t.tenant_id = u.tenant_id AND t.task_id = u.task_id
    AND (u.issuer IS NULL OR (t.issuer = u.issuer AND t.subject = u.subject))
  JOIN tenure.task_state s ON s.tenant_id = u.tenant_id AND s.task_id = u.task_id
  LEFT JOIN LATERAL (
    SELECT array_agg(x.sequence ORDER BY x.sequence) AS sequences, array_agg(x.value ORDER BY x.sequence) AS vals,
           array_agg(x.total ORDER BY x.sequence) AS totals, array_agg(x.message ORDER BY x.sequence) AS messages,
           sum(octet_length(x.message)) AS bytes
    FROM generate_series(greatest(least(u.reports_after, s.progress - 1), s.progress - 16) + 1, s.progress) n(sequence)
    CROSS JOIN LATERAL (
      SELECT * FROM tenure.progress r WHERE r.tenant_id = u.tenant_id AND r.task_id = u.task_id AND r.slot = n.sequence % 16
      OFFSET 0    -- keeps it apart, see Trap in the README
    ) x
    WHERE s.progress > 0
  ) p ON true
  LEFT JOIN tenure.wait w ON s.state = 'WAITING' AND w.tenant_id = u.tenant_id AND w.task_id = u.task_id
  LEFT JOIN LATERAL (
    SELECT array_agg(r.key ORDER BY r.number) AS keys, array_agg(r.method ORDER BY r.number) AS methods,
           array_agg(r.params ORDER BY r.number) AS params, array_agg(r.asked_at ORDER BY r.number) AS asked_at,
           sum(octet_length(r.params)) AS bytes
    FROM tenure.input_request r
    WHERE s.state = 'WAITING' AND r.tenant_id = u.tenant_id AND r.task_id = u.task_id AND r.state = 'OPEN'
  ) q ON true
  LEFT JOIN tenure.outcome o ON o.tenant_id = u.tenant_id AND o.task_id = u.task_id AND u.view >= 2
) f

-- name: changed_tasks
-- $1 tenant, $2 task, $3 the change that is known: arrays, one element an item. Those with another change now, or gone.
SELECT u.ordinal
FROM unnest(tenure.allow_each($1), $2::uuid[], $3::text::bigint[]) WITH ORDINALITY u(tenant_id, task_id, change, ordinal)
LEFT JOIN tenure.task_state s ON s.tenant_id = u.tenant_id AND s.task_id = u.task_id
WHERE s.change IS DISTINCT FROM u.change
ORDER BY u.ordinal

-- name: find_task
-- $1 tenant, $2 reference, $3 issuer or null, $4 subject or null. The one that was created last.
SELECT t.task_id FROM tenure.task t
WHERE t.tenant_id = (SELECT tenure.allow($1)) AND t.reference = $2 AND ($3::text IS NULL OR (t.issuer = $3 AND t.subject = $4))
ORDER BY t.created_at DESC LIMIT 1

-- name: list_tasks
-- $1 tenant, $2 states, $3 workflow or null, $4 created from, $5 and $6 before this time and task, $7 page size. Newest first. A
-- stretch of the index for each state and workflow: nothing is looked at that does not match.
SELECT f.created_at, f.task_id
FROM (
  SELECT DISTINCT l.tenant_id, l.workflow FROM tenure.lane l
  WHERE l.tenant_id = (SELECT tenure.allow($1)) AND l.workflow = coalesce($3::text, l.workflow)) w
CROSS JOIN unnest($2::text[]) u(state)
CROSS JOIN LATERAL (
  SELECT s.created_at, s.task_id FROM tenure.task_state s
  WHERE s.tenant_id = w.tenant_id AND s.state = u.state AND s.workflow = w.workflow
    AND s.created_at >= $4 AND (s.created_at, s.task_id) < ($5, $6)
  ORDER BY s.created_at DESC, s.task_id DESC LIMIT $7
) f
ORDER BY f.created_at DESC, f.task_id DESC LIMIT $7

-- name: list_all_tasks
-- $1 tenant, $2 created from, $3 and $4 before this time and task, $5 page size. Newest first, whatever their state and workflow.
SELECT t.created_at, t.task_id FROM tenure.task t
WHERE t.tenant_id = (SELECT tenure.allow($1)) AND t.created_at >= $2 AND (t.created_at, t.task_id) < ($3, $4)
ORDER BY t.created_at DESC, t.task_id DESC LIMIT $5

-- name: cancel_tasks
-- $1 tenant, $2 task, $3 issuer or null, $4 subject or null, $5 force: arrays; $6 states a cancel may leave, $7 grace ms
SELECT ordinal, outcome, worker_id, opened FROM tenure.cancel_tasks(tenure.allow_each($1), $2, $3, $4, $5, $6, $7) ORDER BY ordinal

-- name: attach_tasks
-- $1 tenant, $2 task, $3 issuer or null, $4 subject or null, $5 abandon ms: arrays
SELECT ordinal, outcome FROM tenure.attach_tasks(tenure.allow_each($1), $2, $3, $4, $5) ORDER BY ordinal

-- name: list_task_history
-- $1 tenant, $2 task, $3 first line, $4 page size
SELECT line, event, at, worker_id, token, detail FROM tenure.history
WHERE tenant_id = (SELECT tenure.allow($1)) AND task_id = $2 AND line >= $3 ORDER BY line LIMIT $4

-- name: list_checkpoints
-- $1 tenant, $2 task, $3 first revision, $4 page size, $5 most bytes of payloads; the first always fits
SELECT c.revision, c.step, c.media_type, c.data, c.token, c.created_at FROM (
  SELECT k.*, sum(octet_length(k.data)) OVER (ORDER BY k.revision) AS bytes FROM tenure.checkpoint k
  WHERE k.tenant_id = (SELECT tenure.allow($1)) AND k.task_id = $2 AND k.revision >= $3 ORDER BY k.revision LIMIT $4
) c
WHERE c.bytes <= $5 OR c.revision = $3
ORDER BY c.revision

-- name: is_task
-- $1 tenant, $2 task
SELECT EXISTS (SELECT FROM tenure.task WHERE tenant_id = (SELECT tenure.allow($1)) AND task_id = $2) AS found
