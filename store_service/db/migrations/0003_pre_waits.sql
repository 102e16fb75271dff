-- Waits: what a suspended task waits for, the questions it asks, the signals it is sent. And forks.
--
-- The task's row decides every race, as in the functions before: whoever suspends, answers, signals or lets the time come
-- holds the task's row first and then looks, in a later statement, at what there is.

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

-- The questions of a task, for its life, in the order asked. A key is never used again.
CREATE TABLE tenure.input_request (
  tenant_id    text COLLATE "C" NOT NULL,
  task_id      uuid   NOT NULL,
  number       int    NOT NULL,             -- dense from 0
  key          text COLLATE "C" NOT NULL,
  name         text COLLATE "C" NOT NULL,
  token        bigint NOT NULL,
  method       text   NOT NULL,
  params       bytea  NOT NULL,
  asked_at     timestamptz NOT NULL,
  state        text COLLATE "C" NOT NULL CHECK (state IN ('OPEN', 'ANSWERED', 'OVER')),
  response     bytea,
  answered_at  timestamptz,
  by_issuer    text,
  by_subject   text,
  PRIMARY KEY (tenant_id, task_id, number),
  UNIQUE (tenant_id, task_id, key),
  CHECK ((state = 'ANSWERED') = (response IS NOT NULL))
);
ALTER TABLE tenure.input_request ALTER COLUMN params SET STORAGE EXTERNAL, ALTER COLUMN response SET STORAGE EXTERNAL;

-- Answers given at a task's creation, before their questions.
CREATE TABLE tenure.early_answer (
  tenant_id text COLLATE "C" NOT NULL,
  task_id   uuid  NOT NULL,
  key       text COLLATE "C" NOT NULL,
  response  bytea NOT NULL,
  PRIMARY KEY (tenant_id, task_id, key)
);

-- Messages to tasks, by id. The digest, of task, name and content, tells a repetition from a conflict.
CREATE TABLE tenure.signal (
  tenant_id   text COLLATE "C" NOT NULL,
  signal_id   text COLLATE "C" NOT NULL,
  task_id     uuid  NOT NULL,
  name        text COLLATE "C" NOT NULL,
  digest      bytea NOT NULL,
  media_type  text  NOT NULL,
  data        bytea NOT NULL,
  state       text COLLATE "C" NOT NULL CHECK (state IN ('PENDING', 'CONSUMED', 'DEAD_LETTER')),
  accepted_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, signal_id)
);
ALTER TABLE tenure.signal ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX signal_pending ON tenure.signal (tenant_id, task_id, name, accepted_at, signal_id) WHERE state = 'PENDING';
CREATE INDEX signal_of_task ON tenure.signal (tenant_id, task_id);
CREATE INDEX signal_over ON tenure.signal (tenant_id, accepted_at) WHERE state <> 'PENDING';

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
-- first, sends the task straight back to the queue; a wished end ends it instead. Questions come flat: `p_q_item` says which
-- item each belongs to. The same suspension by the same lease is answered again.
CREATE FUNCTION tenure.suspend_tasks(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_digest bytea[], p_step text[],
  p_kind text[], p_delay_ms bigint[], p_signal text[], p_q_item bigint[], p_q_name text[], p_q_method text[], p_q_params bytea[],
  p_max_inputs int
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

  -- The questions, under keys of their own, answered at once where the answer came first.
  WITH asked AS (
    SELECT q.i, q.name, q.method, q.params, q.n, (SELECT count(*) FROM input_request r WHERE r.tenant_id = p_tenant[q.i]
             AND r.task_id = p_task[q.i] AND r.name = q.name) AS times,
           (SELECT count(*) FROM input_request r WHERE r.tenant_id = p_tenant[q.i] AND r.task_id = p_task[q.i])
           + row_number() OVER (PARTITION BY q.i ORDER BY q.n) - 1 AS number
    FROM unnest(p_q_item, p_q_name, p_q_method, p_q_params) WITH ORDINALITY q(i, name, method, params, n)
    WHERE q.i = ANY (v_item)
  ), keyed AS MATERIALIZED (
    SELECT a.*, a.name || CASE WHEN a.times > 0 THEN '#' || a.times + 1 ELSE '' END AS key FROM asked a
  ), early AS (
    DELETE FROM early_answer x USING keyed k WHERE x.tenant_id = p_tenant[k.i] AND x.task_id = p_task[k.i] AND x.key = k.key
    RETURNING k.i, x.key, x.response
  )
  INSERT INTO input_request (tenant_id, task_id, number, key, name, token, method, params, asked_at, state, response, answered_at)
  SELECT p_tenant[k.i], p_task[k.i], k.number, k.key, k.name, p_token[k.i], k.method, k.params, v_now,
         CASE WHEN e.key IS NULL THEN 'OPEN' ELSE 'ANSWERED' END, e.response, CASE WHEN e.key IS NOT NULL THEN v_now END
  FROM keyed k LEFT JOIN early e ON e.i = k.i AND e.key = k.key;

  WITH held AS MATERIALIZED (
    SELECT u.o, p_tenant[u.o] AS t, p_task[u.o] AS id, p_token[u.o] AS k, p_kind[u.o] AS kind, g.signal_id,
           CASE WHEN p_delay_ms[u.o] > 0 THEN v_now + p_delay_ms[u.o] * interval '1 ms' END AS until,
           CASE WHEN s.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                WHEN g.signal_id IS NOT NULL THEN 'WOKEN'
                WHEN p_kind[u.o] = 'INPUT' AND NOT EXISTS (
                  SELECT FROM input_request r WHERE r.tenant_id = s.tenant_id AND r.task_id = s.task_id AND r.state = 'OPEN'
                ) THEN 'WOKEN' ELSE 'SUSPENDED' END AS event
    FROM unnest(v_item) u(o)
    JOIN task_state s ON s.tenant_id = p_tenant[u.o] AND s.task_id = p_task[u.o]
    LEFT JOIN LATERAL (
      SELECT x.signal_id FROM signal x WHERE x.tenant_id = s.tenant_id AND x.task_id = s.task_id AND x.state = 'PENDING'
        AND x.name = p_signal[u.o] AND s.cancel_requested_at IS NULL
      ORDER BY x.accepted_at, x.signal_id LIMIT 1) g ON true
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
  SELECT array_agg((m.tenant_id, m.workflow, m.version, CASE WHEN m.event = 'CANCELLED' THEN -1 ELSE 0 END, -1, m.ready::int)::delta)
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
  UPDATE signal x SET state = 'DEAD_LETTER'
  FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.ended_at IS NOT NULL
  WHERE x.tenant_id = u.t AND x.task_id = u.id AND x.state = 'PENDING';
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
  RETURNING ARRAY[(s.tenant_id, s.workflow, s.version, 0, 0, 1)::delta], s.lines - 1 INTO v_deltas, v_line;
  INSERT INTO history (tenant_id, task_id, line, event, at, detail) VALUES (p_tenant, p_task, v_line, 'WOKEN', p_now, p_wake);
  RETURN apply_deltas(v_deltas);
END $$;

-- Answers open questions of a task: for each key ACCEPTED or IGNORED; one row NOT_FOUND when there is no such task. The task
-- goes on when no question is open.
CREATE FUNCTION tenure.answer_inputs(
  p_tenant text, p_task uuid, p_issuer text, p_subject text, p_by_issuer text, p_by_subject text, p_key text[], p_response bytea[]
) RETURNS TABLE (ordinal bigint, outcome text, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_waits boolean; v_accepted text[]; v_opened text[] := '{}';
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF NOT EXISTS (SELECT FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_task
                 AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject))) THEN
    RETURN QUERY SELECT 0::bigint, 'NOT_FOUND', v_opened;
    RETURN;
  END IF;
  SELECT s.state = 'WAITING' AND w.kind = 'INPUT' AND (w.until IS NULL OR v_now < w.until) INTO v_waits
  FROM task_state s LEFT JOIN wait w ON w.tenant_id = p_tenant AND w.task_id = p_task
  WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
  IF v_waits THEN
    WITH answered AS (
      UPDATE input_request r SET state = 'ANSWERED', response = u.response, answered_at = v_now,
        by_issuer = p_by_issuer, by_subject = p_by_subject
      FROM unnest(p_key, p_response) u(key, response)
      WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.key = u.key AND r.state = 'OPEN'
      RETURNING r.key
    )
    SELECT array_agg(a.key) INTO v_accepted FROM answered a;
  END IF;
  IF v_accepted IS NOT NULL THEN
    IF EXISTS (SELECT FROM input_request r WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.state = 'OPEN') THEN
      UPDATE task_state s SET change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
        WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
    ELSE
      v_opened := wake_task(p_tenant, p_task, v_now, 'INPUT', NULL);
    END IF;
  END IF;
  RETURN QUERY SELECT u.o, CASE WHEN u.key = ANY (v_accepted) THEN 'ACCEPTED' ELSE 'IGNORED' END, v_opened
    FROM unnest(p_key) WITH ORDINALITY u(key, o) ORDER BY u.o;
END $$;

-- Publishes a signal. NOT_FOUND, SIGNAL_ID_CONFLICT, SIGNAL_LIMIT, or where it stands: CONSUMED (it woke the task), PENDING,
-- DEAD_LETTER. One decision, under the task's row: strictly before the wait's end the signal wins, at it the timeout does.
CREATE FUNCTION tenure.publish_signal(
  p_tenant text, p_signal text, p_task uuid, p_issuer text, p_subject text, p_name text, p_digest bytea, p_media text, p_data bytea,
  p_max_pending int
) RETURNS TABLE (outcome text, replayed boolean, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_state text; v_digest bytea; v_opened text[] := '{}';
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF NOT EXISTS (SELECT FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_task
                 AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject))) THEN
    RETURN QUERY SELECT 'NOT_FOUND', false, v_opened;
    RETURN;
  END IF;
  SELECT x.state, x.digest INTO v_state, v_digest FROM signal x WHERE x.tenant_id = p_tenant AND x.signal_id = p_signal;
  IF v_state IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN v_digest = p_digest THEN v_state ELSE 'SIGNAL_ID_CONFLICT' END, v_digest = p_digest, v_opened;
    RETURN;
  END IF;
  SELECT CASE
      WHEN s.ended_at IS NOT NULL THEN 'DEAD_LETTER'
      WHEN s.state <> 'WAITING' OR w.signal_name IS DISTINCT FROM p_name THEN 'PENDING'
      WHEN w.until <= v_now THEN 'DEAD_LETTER'
      ELSE 'CONSUMED' END
  INTO v_state FROM task_state s LEFT JOIN wait w ON w.tenant_id = p_tenant AND w.task_id = p_task
  WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
  IF v_state = 'PENDING' AND p_max_pending <= (
      SELECT count(*) FROM (SELECT FROM signal x WHERE x.tenant_id = p_tenant AND x.task_id = p_task AND x.state = 'PENDING'
                            LIMIT p_max_pending) x) THEN
    RETURN QUERY SELECT 'SIGNAL_LIMIT', false, v_opened;
    RETURN;
  END IF;
  INSERT INTO signal (tenant_id, signal_id, task_id, name, digest, media_type, data, state, accepted_at)
    VALUES (p_tenant, p_signal, p_task, p_name, p_digest, p_media, p_data, v_state, v_now);
  IF v_state = 'CONSUMED' THEN
    v_opened := wake_task(p_tenant, p_task, v_now, 'SIGNAL', p_signal);
  END IF;
  RETURN QUERY SELECT v_state, false, v_opened;
END $$;

-- Creates a task that starts with the first checkpoints of another: CREATED, REPLAYED, REQUEST_ID_CONFLICT, NOT_FOUND,
-- CHECKPOINT_NOT_FOUND or OUTSTANDING_LIMIT.
CREATE FUNCTION tenure.fork_task(
  p_tenant text, p_source uuid, p_checkpoints int, p_issuer text, p_subject text, p_task uuid, p_request text, p_digest bytea
) RETURNS TABLE (outcome text, task_id uuid, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_known uuid; v_same boolean; v_owned boolean; v_has int; v_room boolean; v_deltas delta[];
BEGIN
  SELECT t.outstanding < t.max_outstanding INTO v_room FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_source FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT x.task_id, x.request_digest = p_digest, p_issuer IS NULL OR (x.issuer = p_issuer AND x.subject = p_subject)
  INTO v_known, v_same, v_owned FROM task x WHERE x.tenant_id = p_tenant AND x.request_id = p_request;
  IF v_known IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN NOT v_same THEN 'REQUEST_ID_CONFLICT' WHEN v_owned THEN 'REPLAYED' ELSE 'NOT_FOUND' END,
                        v_known, '{}'::text[];
    RETURN;
  END IF;
  SELECT s.checkpoints INTO v_has FROM task_state s JOIN task t ON t.tenant_id = s.tenant_id AND t.task_id = s.task_id
    WHERE s.tenant_id = p_tenant AND s.task_id = p_source
      AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject));
  IF v_has IS NULL OR v_has < p_checkpoints OR NOT v_room THEN
    RETURN QUERY SELECT CASE WHEN v_has IS NULL THEN 'NOT_FOUND' WHEN v_has < p_checkpoints THEN 'CHECKPOINT_NOT_FOUND'
                             ELSE 'OUTSTANDING_LIMIT' END, NULL::uuid, '{}'::text[];
    RETURN;
  END IF;
  INSERT INTO task (tenant_id, task_id, request_id, request_digest, tool, workflow, version, issuer, subject, client_capabilities,
                    output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms, trace_parent, priority, media_type, input,
                    created_at, forked_from, forked_checkpoints)
  SELECT t.tenant_id, p_task, p_request, p_digest, t.tool, t.workflow, t.version, t.issuer, t.subject, t.client_capabilities,
         t.output_schema, t.ttl_ms, t.poll_interval_ms, t.execution_deadline_ms, t.trace_parent, t.priority, t.media_type, t.input,
         v_now, p_source, p_checkpoints
  FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_source;
  INSERT INTO checkpoint (tenant_id, task_id, revision, step, media_type, data, token, created_at)
  SELECT c.tenant_id, p_task, c.revision, c.step, c.media_type, c.data, 0, v_now
  FROM checkpoint c WHERE c.tenant_id = p_tenant AND c.task_id = p_source AND c.revision < p_checkpoints;
  INSERT INTO task_state (tenant_id, task_id, workflow, version, priority, state, ready, ready_at, check_at, deadline_at, ttl_ms,
                          checkpoints, checkpoint_bytes, lines, changed_at)
  SELECT t.tenant_id, t.task_id, t.workflow, t.version, t.priority, 'QUEUED', true, v_now, d.at, d.at, t.ttl_ms, p_checkpoints,
         (SELECT coalesce(sum(octet_length(c.data)), 0) FROM checkpoint c WHERE c.tenant_id = p_tenant AND c.task_id = p_task),
         1, v_now
  FROM task t CROSS JOIN LATERAL (
    SELECT CASE WHEN t.execution_deadline_ms > 0 THEN v_now + t.execution_deadline_ms * interval '1 ms' END) d(at)
  WHERE t.tenant_id = p_tenant AND t.task_id = p_task;
  INSERT INTO history (tenant_id, task_id, line, event, at, detail)
    VALUES (p_tenant, p_task, 0, 'CREATED', v_now, 'forked from ' || p_source);
  SELECT ARRAY[(t.tenant_id, t.workflow, t.version, 1, 0, 1)::delta] INTO v_deltas FROM task t
    WHERE t.tenant_id = p_tenant AND t.task_id = p_task;
  RETURN QUERY SELECT 'CREATED', p_task, apply_deltas(v_deltas);
END $$;

-- Forgets signals that were consumed or are dead letters, oldest first; never pending ones. Returns how many.
CREATE FUNCTION tenure.compact_signals(p_tenant text, p_older_ms bigint, p_limit int) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_count int;
BEGIN
  WITH due AS (
    SELECT x.signal_id FROM signal x WHERE x.tenant_id = p_tenant AND x.state <> 'PENDING'
      AND x.accepted_at <= (SELECT task_now()) - p_older_ms * interval '1 ms'
      AND NOT EXISTS (SELECT FROM wait w JOIN task_state s ON s.tenant_id = w.tenant_id AND s.task_id = w.task_id
                      WHERE w.tenant_id = p_tenant AND w.task_id = x.task_id AND w.signal_id = x.signal_id AND s.ended_at IS NULL)
    ORDER BY x.accepted_at LIMIT p_limit FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM signal x USING due d WHERE x.tenant_id = p_tenant AND x.signal_id = d.signal_id RETURNING 1
  )
  SELECT count(*) INTO v_count FROM gone;
  RETURN v_count;
END $$;

-- The counters against the rows they count, lanes against what they say of their tenant, and `check_at` against everything
-- that it stands for: `forgotten` tasks have something timed that nobody would look at in time, `stuck` ones wait for nothing
-- that can come. It returns no row, ever.
CREATE VIEW tenure.audit AS
SELECT t.tenant_id, t.outstanding, t.leased, c.live, c.held, c.ready, a.lane_ready, a.lane_right, c.forgotten, c.stuck
FROM tenure.tenant t
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE s.ended_at IS NULL) AS live,
         count(*) FILTER (WHERE s.state = 'LEASED') AS held,
         count(*) FILTER (WHERE s.ready) AS ready,
         count(*) FILTER (WHERE coalesce(s.check_at, 'infinity') > least(
           s.expires_at, s.deadline_at, s.abandon_at, s.cancel_at, w.until,
           CASE WHEN s.state = 'QUEUED' AND NOT s.ready THEN s.ready_at END,
           CASE WHEN s.state = 'QUEUED' THEN s.ready_at + s.recovery_ms * interval '1 ms' END) AND s.ended_at IS NULL) AS forgotten,
         count(*) FILTER (WHERE s.state = 'WAITING' AND w.task_id IS NULL) AS stuck
  FROM tenure.task_state s
  LEFT JOIN tenure.wait w ON s.state = 'WAITING' AND w.tenant_id = s.tenant_id AND w.task_id = s.task_id AND w.wake IS NULL
  WHERE s.tenant_id = t.tenant_id
) c
CROSS JOIN LATERAL (
  SELECT coalesce(sum(l.ready), 0) AS lane_ready,
         coalesce(bool_and(l.open = (l.ready > 0 AND t.leased < t.max_leased) AND (l.ready = 0 OR l.turn = t.turn)), true)
           AS lane_right
  FROM tenure.lane l WHERE l.tenant_id = t.tenant_id
) a
WHERE (t.outstanding, t.leased, c.ready, c.forgotten, c.stuck, a.lane_right)
  IS DISTINCT FROM (c.live, c.held, a.lane_ready, 0::bigint, 0::bigint, true);

-- Names resolve in the schema alone. Plans are pinned where the query lives: by key, by nested loop, one plan for all
-- parameters.
DO $$
DECLARE f text; setting text;
BEGIN
  FOREACH f IN ARRAY '{apply_deltas,create_tasks,claim_tasks,heartbeat_tasks,append_checkpoints,report_progress,finish_tasks,cancel_tasks,attach_tasks,promote_due,set_tenant_policy,remove_tasks,suspend_tasks,close_waits,wake_task,answer_inputs,publish_signal,fork_task,compact_signals}'::text[] LOOP
    FOREACH setting IN ARRAY '{"search_path = tenure, pg_temp","enable_seqscan = off","enable_hashjoin = off","enable_mergejoin = off","plan_cache_mode = force_generic_plan"}'::text[] LOOP
      EXECUTE format('ALTER FUNCTION tenure.%I SET %s', f, setting);
    END LOOP;
  END LOOP;
END $$;
