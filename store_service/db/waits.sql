-- Waits, questions, signals, forks. In every query the tenant comes first.

-- name: suspend_tasks
-- $1 tenant, $2 task, $3 worker, $4 token, $5 epoch, $6 digest, $7 step, $8 kind, $9 delay ms, $10 signal name or null: arrays;
-- $11 item, $12 name, $13 method, $14 params: arrays, one element a question; $15 item, $16 key: arrays, one element an early
-- answer that fits; $17 most questions of a task
SELECT ordinal, outcome, keys, opened
FROM tenure.suspend_tasks(tenure.allow_each($1), $2, $3, $4::text::bigint[], $5::text::bigint[], $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) ORDER BY ordinal

-- name: answer_inputs
-- $1 tenant, $2 task, $3 issuer or null, $4 subject or null, $5 issuer and $6 subject who answer, $7 keys, $8 responses
SELECT ordinal, outcome, opened FROM tenure.answer_inputs(tenure.allow($1), $2, $3, $4, $5, $6, $7, $8) ORDER BY ordinal

-- name: publish_signal
-- $1 tenant, $2 signal, $3 task, $4 issuer or null, $5 subject or null, $6 name, $7 digest, $8 media type, $9 data,
-- $10 most pending ones of a task
SELECT outcome, replayed, opened FROM tenure.publish_signal(tenure.allow($1), $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: get_signal
-- $1 tenant, $2 signal
SELECT signal_id, task_id, name, state, accepted_at FROM tenure.signal WHERE tenant_id = (SELECT tenure.allow($1)) AND signal_id = $2

-- name: list_signals
-- $1 tenant, $2 states, $3 and $4 before this time and signal, $5 page size. Newest first.
SELECT f.signal_id, f.task_id, f.name, f.state, f.accepted_at
FROM unnest($2::text[]) u(state)
CROSS JOIN LATERAL (
  SELECT x.signal_id, x.task_id, x.name, x.state, x.accepted_at FROM tenure.signal x
  WHERE x.tenant_id = (SELECT tenure.allow($1)) AND x.state = u.state
    AND (x.accepted_at, x.signal_id) < ($3, $4)
  ORDER BY x.accepted_at DESC, x.signal_id DESC LIMIT $5
) f
ORDER BY f.accepted_at DESC, f.signal_id DESC LIMIT $5

-- name: list_signals_of_task
-- $1 tenant, $2 states, $3 and $4 before this time and signal, $5 page size, $6 task. Newest first.
SELECT x.signal_id, x.task_id, x.name, x.state, x.accepted_at FROM tenure.signal x
WHERE x.tenant_id = (SELECT tenure.allow($1)) AND x.task_id = $6 AND x.state = ANY ($2::text[])
  AND (x.accepted_at, x.signal_id) < ($3, $4)
ORDER BY x.accepted_at DESC, x.signal_id DESC LIMIT $5

-- name: fork_task
-- $1 tenant, $2 source, $3 checkpoints, $4 issuer or null, $5 subject or null, $6 new task, $7 request, $8 digest
SELECT outcome, task_id, opened FROM tenure.fork_task(tenure.allow($1), $2, $3, $4, $5, $6, $7, $8)

-- name: compact_signals
-- $1 tenant, $2 age in ms, $3 most signals
SELECT tenure.compact_signals(tenure.allow($1), $2, $3) AS compacted
