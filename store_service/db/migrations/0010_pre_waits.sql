-- Waits: what a suspended task waits for, and what ends that.
--
-- The task's row decides every race: whoever suspends, answers, signals or lets the time come holds the task's row first and
-- then looks, in a later statement, at what there is.

-- The wait that a task is in, or the last one it was in and what ended it. One row a task.
CREATE TABLE tenure.wait (
  tenant_id   text COLLATE "C" NOT NULL,
  task_id     uuid   NOT NULL,
  token       bigint NOT NULL,              -- of the lease that suspended it; its questions have the same
  step        text   NOT NULL,
  kind        text COLLATE "C" NOT NULL CHECK (kind IN ('TIMER', 'SIGNAL', 'INPUT')),
  until       timestamptz,
  signal_name text COLLATE "C",
  wake        text COLLATE "C" CHECK (wake IN ('TIMER', 'SIGNAL', 'INPUT', 'TIMEOUT')),   -- NULL = it still waits
  signal_id   text COLLATE "C",
  PRIMARY KEY (tenant_id, task_id),
  CHECK ((kind = 'SIGNAL') = (signal_name IS NOT NULL)),
  CHECK ((wake IS NOT DISTINCT FROM 'SIGNAL') = (signal_id IS NOT NULL))
) WITH (fillfactor = 60);

-- What ended the last wait of a task, with all that its worker is told about it.
CREATE VIEW tenure.wake AS
SELECT w.tenant_id, w.task_id, w.wake, w.step, w.signal_id, w.signal_name, g.media_type AS signal_media_type, g.data AS signal_data,
       q.keys AS input_keys, q.responses AS input_responses, coalesce(octet_length(g.data), 0) + coalesce(q.bytes, 0) AS bytes
FROM tenure.wait w
LEFT JOIN tenure.signal g ON g.tenant_id = w.tenant_id AND g.signal_id = w.signal_id
LEFT JOIN LATERAL (
  SELECT array_agg(r.key ORDER BY r.number) AS keys, array_agg(r.response ORDER BY r.number) AS responses,
         sum(octet_length(r.response)) AS bytes
  FROM tenure.input_request r WHERE w.kind = 'INPUT' AND r.tenant_id = w.tenant_id AND r.task_id = w.task_id AND r.token = w.token
) q ON true
WHERE w.wake IS NOT NULL;

-- Suspends leased tasks: OK, LEASE_LOST, BUDGET_RESERVED or INPUT_LIMIT. A wait that is over already, since its signal or its answers came
-- first, sends the task straight back to the queue; a wished end ends it instead. Questions, and the keys of early answers that fit,
-- come flat: `p_q_item` and `p_f_item` say which item each belongs to. The same suspension by the same lease is answered again.
CREATE FUNCTION tenure.suspend_tasks(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_digest bytea[], p_step text[],
  p_kind text[], p_delay_ms bigint[], p_signal text[], p_q_item bigint[], p_q_name text[], p_q_method text[], p_q_params bytea[],
  p_f_item bigint[], p_f_key text[], p_max_inputs int
) RETURNS TABLE (ordinal bigint, outcome text, keys text[], opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint; v_item bigint[]; v_refused bigint[]; v_reserved bigint[]; v_deltas delta[];
  v_opened text[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;

  -- Who may, who has to settle first, and who would ask too much.
  SELECT array_agg(h.o) FILTER (WHERE NOT h.reserved AND NOT h.too_much), array_agg(h.o) FILTER (WHERE h.reserved),
         array_agg(h.o) FILTER (WHERE NOT h.reserved AND h.too_much)
  INTO v_item, v_reserved, v_refused FROM (
    SELECT u.o, s.recovery_ms IS NOT NULL AS reserved, (SELECT count(*) FROM input_request r WHERE r.tenant_id = u.t AND r.task_id = u.id)
                + (SELECT count(*) FROM unnest(p_q_item) q WHERE q = u.o) > p_max_inputs AS too_much
    FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch) WITH ORDINALITY u(t, id, w, k, e, o)
    JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch
      AND s.expires_at > v_now) h;

  -- The questions, under keys of their own, answered at once where an answer that fits came first.
  WITH asked AS (
    SELECT q.i, p_tenant[q.i] AS t, p_task[q.i] AS id, q.name, q.method, q.params, q.n,
           (SELECT count(*) FROM input_request r WHERE r.tenant_id = p_tenant[q.i] AND r.task_id = p_task[q.i] AND r.name = q.name)
           AS times,
           (SELECT count(*) FROM input_request r WHERE r.tenant_id = p_tenant[q.i] AND r.task_id = p_task[q.i])
           + row_number() OVER (PARTITION BY q.i ORDER BY q.n) - 1 AS number
    FROM unnest(p_q_item, p_q_name, p_q_method, p_q_params) WITH ORDINALITY q(i, name, method, params, n)
    WHERE q.i = ANY (v_item)
  ), keyed AS MATERIALIZED (
    SELECT a.*, a.name || CASE WHEN a.times > 0 THEN '#' || a.times + 1 ELSE '' END AS key FROM asked a
  ), early AS (
    DELETE FROM early_answer x USING keyed k WHERE x.tenant_id = k.t AND x.task_id = k.id AND x.key = k.key
    RETURNING k.i, x.key, x.response
  ), fitting AS (
    SELECT e.* FROM early e JOIN unnest(p_f_item, p_f_key) f(i, key) ON f.i = e.i AND f.key = e.key
  )
  INSERT INTO input_request (tenant_id, task_id, number, key, name, token, method, params, asked_at, state, response, answered_at)
  SELECT k.t, k.id, k.number, k.key, k.name, p_token[k.i], k.method, k.params, v_now,
         CASE WHEN e.key IS NULL THEN 'OPEN' ELSE 'ANSWERED' END, e.response, CASE WHEN e.key IS NOT NULL THEN v_now END
  FROM keyed k LEFT JOIN fitting e ON e.i = k.i AND e.key = k.key;

  WITH held AS MATERIALIZED (
    SELECT u.o, u.t, u.id, p_token[u.o] AS k, p_kind[u.o] AS kind, g.signal_id,
           CASE WHEN p_delay_ms[u.o] > 0 THEN v_now + p_delay_ms[u.o] * interval '1 ms' END AS until,
           CASE WHEN s.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                WHEN g.signal_id IS NOT NULL THEN 'WOKEN'
                WHEN p_kind[u.o] = 'INPUT' AND NOT EXISTS (
                  SELECT FROM input_request r WHERE r.tenant_id = s.tenant_id AND r.task_id = s.task_id AND r.state = 'OPEN'
                ) THEN 'WOKEN' ELSE 'SUSPENDED' END AS event
    FROM unnest(p_tenant, p_task) WITH ORDINALITY u(t, id, o)
    JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    LEFT JOIN LATERAL (
      SELECT x.signal_id FROM signal x WHERE x.tenant_id = s.tenant_id AND x.task_id = s.task_id AND x.state = 'PENDING'
        AND x.name = p_signal[u.o] AND s.cancel_requested_at IS NULL
      ORDER BY x.accepted_at, x.signal_id LIMIT 1) g ON true
    WHERE u.o = ANY (v_item)
  ), consumed AS (
    UPDATE signal x SET state = 'CONSUMED' FROM held h WHERE x.tenant_id = h.t AND x.signal_id = h.signal_id
  ), waits AS (
    INSERT INTO wait AS w (tenant_id, task_id, token, step, kind, until, signal_name, wake, signal_id)
    SELECT h.t, h.id, h.k, p_step[h.o], h.kind, h.until, p_signal[h.o], CASE WHEN h.event = 'WOKEN' THEN h.kind END, h.signal_id
    FROM held h WHERE h.event <> 'CANCELLED'
    ON CONFLICT (tenant_id, task_id) DO UPDATE SET token = excluded.token, step = excluded.step, kind = excluded.kind,
      until = excluded.until, signal_name = excluded.signal_name, wake = excluded.wake, signal_id = excluded.signal_id
  ), moved AS (
    UPDATE task_state s SET
      state = CASE h.event WHEN 'SUSPENDED' THEN 'WAITING' WHEN 'WOKEN' THEN 'QUEUED' ELSE 'CANCELLED' END,
      ready = h.event = 'WOKEN', ready_at = v_now, worker_id = NULL, expires_at = NULL,
      check_at = CASE WHEN h.event <> 'CANCELLED'
                      THEN least(CASE WHEN h.event = 'SUSPENDED' THEN h.until END, s.deadline_at, s.abandon_at) END,
      finish_token = h.k, finish_digest = p_digest[h.o], changed_at = greatest(s.changed_at, v_now),
      lines = s.lines + CASE WHEN h.event = 'WOKEN' THEN 2 ELSE 1 END,
      change = s.change + CASE WHEN h.event = 'WOKEN' THEN 2 ELSE 1 END,
      ended_at = CASE WHEN h.event = 'CANCELLED' THEN greatest(s.changed_at, v_now) END,
      handle_ends_at = CASE WHEN h.event = 'CANCELLED' THEN greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms' END
    FROM held h WHERE s.tenant_id = h.t AND s.task_id = h.id
    RETURNING h.o, h.event, h.k, s.tenant_id, s.task_id, s.workflow, s.version, s.ready, s.lines
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token, detail)
    SELECT m.tenant_id, m.task_id, m.lines - CASE WHEN m.event = 'WOKEN' THEN 2 ELSE 1 END,
           CASE WHEN m.event = 'WOKEN' THEN 'SUSPENDED' ELSE m.event END, v_now, p_worker[m.o], m.k, p_step[m.o] FROM moved m
    UNION ALL
    SELECT m.tenant_id, m.task_id, m.lines - 1, 'WOKEN', v_now, NULL, NULL, p_kind[m.o] FROM moved m WHERE m.event = 'WOKEN'
  )
  SELECT array_agg((m.tenant_id, m.workflow, m.version, CASE WHEN m.event = 'CANCELLED' THEN -1 ELSE 0 END, -1, m.ready::int,
                    CASE WHEN m.ready THEN v_now END)::delta)
  INTO v_deltas FROM moved m;
  PERFORM close_waits(p_tenant, p_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY
  SELECT u.o,
         CASE WHEN u.o = ANY (v_reserved) THEN 'BUDGET_RESERVED' WHEN u.o = ANY (v_refused) THEN 'INPUT_LIMIT'
              WHEN u.o = ANY (v_item) OR (s.finish_token = u.k AND s.finish_digest = u.digest AND u.e = v_epoch) THEN 'OK'
              ELSE 'LEASE_LOST' END,
         (SELECT coalesce(array_agg(r.key ORDER BY r.number), '{}') FROM input_request r
          WHERE r.tenant_id = u.t AND r.task_id = u.id AND r.token = u.k), v_opened
  FROM unnest(p_tenant, p_task, p_token, p_epoch, p_digest) WITH ORDINALITY u(t, id, k, e, digest, o)
  LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
  ORDER BY u.o;
END $$;

-- For tasks that have ended: signals that nothing will wait for become dead letters, open questions are over. The caller
-- holds the tasks.
CREATE FUNCTION tenure.close_waits(p_tenant text[], p_task uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM close_signals(p_tenant, p_task);
  PERFORM close_questions(p_tenant, p_task);
END $$;

CREATE FUNCTION tenure.close_signals(p_tenant text[], p_task uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE signal x SET state = 'DEAD_LETTER'
  FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.ended_at IS NOT NULL
  WHERE x.tenant_id = u.t AND x.task_id = u.id AND x.state = 'PENDING';
END $$;

CREATE FUNCTION tenure.close_questions(p_tenant text[], p_task uuid[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  UPDATE input_request r SET state = 'OVER'
  FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.ended_at IS NOT NULL
  WHERE r.tenant_id = u.t AND r.task_id = u.id AND r.state = 'OPEN';
END $$;

-- Puts a waiting task back into the queue, for the cause given. The caller holds tenant and task.
CREATE FUNCTION tenure.wake_task(p_tenant text, p_task uuid, p_now timestamptz, p_wake text, p_signal text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE v_deltas delta[]; v_line int;
BEGIN
  UPDATE wait SET wake = p_wake, signal_id = p_signal WHERE tenant_id = p_tenant AND task_id = p_task;
  UPDATE task_state s SET state = 'QUEUED', ready = true, ready_at = p_now, check_at = least(s.deadline_at, s.abandon_at),
    lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, p_now)
  WHERE s.tenant_id = p_tenant AND s.task_id = p_task
  RETURNING ARRAY[(s.tenant_id, s.workflow, s.version, 0, 0, 1, p_now)::delta], s.lines - 1 INTO v_deltas, v_line;
  INSERT INTO history (tenant_id, task_id, line, event, at, detail) VALUES (p_tenant, p_task, v_line, 'WOKEN', p_now, p_wake);
  RETURN apply_deltas(v_deltas);
END $$;
