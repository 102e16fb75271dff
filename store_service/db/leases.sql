-- What workers do with leases. In every query the tenant comes first, but in claims, which look for one.

-- name: claim_tasks
-- $1 worker, $2 request, $3 workflows, $4 versions, $5 tenants or null, $6 lease ms of each workflow, $7 limit, $8 most of
-- one tenant in a visit, $9 whether to wait for the first tenant, $10 most bytes of contracts and inputs
SELECT tenant_id, task_id, token, epoch, expires_at, attempts, crashes, retries, checkpoints, cancel_requested, deadline_at, tool,
       workflow, version, issuer, subject, client_capabilities, output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms,
       trace_parent, trace_state, baggage, media_type, input, created_at, wake, wake_step, signal_id, signal_name,
       signal_media_type, signal_data, input_keys, input_responses, early_answers, fits, lease_ms, more
FROM tenure.claim_tasks($2, $1, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: heartbeat_tasks
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 lease ms or 0: arrays
SELECT ordinal, outcome, expires_at, cancel_requested FROM tenure.heartbeat_tasks(
  tenure.allow_each($1), $2, $3, $4::text::bigint[], $5::text::bigint[], $6::text::bigint[]) ORDER BY ordinal

-- name: append_checkpoints
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 revision, $7 step, $8 media type, $9 data: arrays;
-- $10 most checkpoints, $11 most bytes of one task
SELECT ordinal, outcome FROM tenure.append_checkpoints(
  tenure.allow_each($1), $2, $3, $4::text::bigint[], $5::text::bigint[], $6::text::int[], $7, $8, $9, $10, $11) ORDER BY ordinal

-- name: report_progress
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 value, $7 total or null, $8 message: arrays
SELECT ordinal, outcome, sequence FROM tenure.report_progress(
  tenure.allow_each($1), $2, $3, $4::text::bigint[], $5::text::bigint[], $6, $7, $8) ORDER BY ordinal

-- name: finish_tasks
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 disposition, $7 digest, $8 media type, $9 data, $10 error code,
-- $11 error message, $12 delay ms, $13 most attempts, $14 initial backoff ms, $15 most backoff ms: arrays
SELECT ordinal, outcome, retry_at, opened
FROM tenure.finish_tasks(
  tenure.allow_each($1), $2, $3, $4::text::bigint[], $5::text::bigint[], $6, $7, $8, $9, $10::text::int[], $11,
  $12::text::bigint[], $13::text::int[], $14::text::bigint[], $15::text::bigint[]) ORDER BY ordinal

-- name: load_input
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch
SELECT t.media_type, t.input, k.wake, k.step AS wake_step, k.signal_id, k.signal_name, k.signal_media_type, k.signal_data,
       k.input_keys, k.input_responses
FROM tenure.task t LEFT JOIN tenure.wake k ON k.tenant_id = t.tenant_id AND k.task_id = t.task_id
WHERE t.tenant_id = (SELECT tenure.allow($1)) AND t.task_id = $2 AND EXISTS (
  SELECT FROM tenure.task_state s WHERE s.tenant_id = (SELECT tenure.allow($1)) AND s.task_id = $2 AND s.worker_id = $3 AND s.token = $4
    AND $5 = (SELECT e.epoch FROM tenure.epoch e) AND s.expires_at > (SELECT tenure.task_now()))

-- name: load_early_answers
-- $1 tenant, $2 task
SELECT x.key, x.response FROM tenure.early_answer x WHERE x.tenant_id = (SELECT tenure.allow($1)) AND x.task_id = $2 ORDER BY x.key

-- name: is_held
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch
SELECT EXISTS (
  SELECT FROM tenure.task_state s WHERE s.tenant_id = (SELECT tenure.allow($1)) AND s.task_id = $2 AND s.worker_id = $3 AND s.token = $4
    AND $5 = (SELECT e.epoch FROM tenure.epoch e) AND s.expires_at > (SELECT tenure.task_now())) AS held
