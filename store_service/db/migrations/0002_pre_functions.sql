-- The transitions. Each function is one transaction in one round trip, for a batch of items that all name different
-- tasks; a refused item is a row that says so and never spoils its neighbours.
--
-- They are PL/pgSQL because each of its statements has a snapshot of its own: a statement that runs after a lock was won
-- sees what the lock's former holder wrote. The order within each is the same:
--   1. lock the tenants, sorted;  2. lock the tasks, sorted;  3. only then read the clock, once;
--   4. compare the fence and write, in one statement;  5. bring the counters along.
-- A clock read before the locks, or in the WHERE of the statement that takes them, would revive a lease that ran out while
-- it waited.

-- What one task's transition does to the counters of its tenant and its lane.
CREATE TYPE tenure.delta AS (
  tenant_id text, workflow text, version int, outstanding int, leased int, ready int
);

-- The one place that writes the counters. The caller holds the tenants. Returns the lanes that a waiting worker may now
-- find something in, as `workflow/version`.
CREATE FUNCTION tenure.apply_deltas(p_deltas tenure.delta[], p_take_turn boolean DEFAULT false) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE v_opened text[];
BEGIN
  WITH d AS MATERIALIZED (
    SELECT u.tenant_id, u.workflow, u.version,
           sum(u.outstanding)::int AS outstanding, sum(u.leased)::int AS leased, sum(u.ready)::int AS ready
    FROM unnest(p_deltas) u GROUP BY 1, 2, 3
  ), per_tenant AS (
    SELECT d.tenant_id, sum(d.outstanding)::int AS outstanding, sum(d.leased)::int AS leased FROM d GROUP BY 1
  ), counted AS (
    UPDATE tenant t SET
      outstanding = t.outstanding + p.outstanding, leased = t.leased + p.leased,
      turn = CASE WHEN p_take_turn THEN nextval('turn') ELSE t.turn END
    FROM per_tenant p WHERE t.tenant_id = p.tenant_id
    RETURNING t.tenant_id, t.turn, t.leased < t.max_leased AS room, t.leased - p.leased < t.max_leased AS had_room
  ), touched AS (
    SELECT c.tenant_id, c.turn, c.room, c.had_room, l.workflow, l.version, coalesce(d.ready, 0) AS ready
    FROM counted c
    JOIN lane l ON l.tenant_id = c.tenant_id
    LEFT JOIN d ON d.tenant_id = l.tenant_id AND d.workflow = l.workflow AND d.version = l.version
    WHERE coalesce(d.ready, 0) <> 0 OR (l.ready > 0 AND (p_take_turn OR c.room <> c.had_room))
  ), laned AS (
    UPDATE lane l SET ready = l.ready + x.ready, turn = x.turn, open = x.room AND l.ready + x.ready > 0
    FROM touched x WHERE l.tenant_id = x.tenant_id AND l.workflow = x.workflow AND l.version = x.version
    RETURNING l.workflow, l.version, l.open AND (x.ready > 0 OR NOT x.had_room) AS opened
  )
  SELECT array_agg(DISTINCT x.workflow || '/' || x.version) INTO v_opened FROM laned x WHERE x.opened;
  RETURN coalesce(v_opened, '{}');
END $$;

-- Creates tasks. An item is CREATED, REPLAYED (its request id was used for the same content), REQUEST_ID_CONFLICT,
-- INPUT_TOO_LARGE, OUTSTANDING_LIMIT or CREATE_RATE. No two items share a request id.
CREATE FUNCTION tenure.create_tasks(
  p_tenant text[], p_task uuid[], p_request text[], p_digest bytea[], p_tool text[], p_workflow text[], p_version int[],
  p_issuer text[], p_subject text[], p_capabilities bytea[], p_schema bytea[], p_ttl_ms bigint[], p_poll_ms bigint[],
  p_deadline_ms bigint[], p_trace text[], p_priority int[], p_media text[], p_input bytea[], p_abandon_ms bigint[],
  p_e_item bigint[], p_e_key text[], p_e_response bytea[]
) RETURNS TABLE (ordinal bigint, outcome text, task_id uuid, created_at timestamptz, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_outcome text[]; v_id uuid[]; v_deltas delta[]; v_opened text[];
BEGIN
  INSERT INTO tenant (tenant_id) SELECT DISTINCT x FROM unnest(p_tenant) x ORDER BY 1 ON CONFLICT DO NOTHING;
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  v_now := task_now();
  INSERT INTO lane (tenant_id, workflow, version)
    SELECT DISTINCT u.t, u.w, u.v FROM unnest(p_tenant, p_workflow, p_version) u(t, w, v) ORDER BY 1, 2, 3
    ON CONFLICT DO NOTHING;
  WITH item AS (
    SELECT u.o, u.t, u.id, x.task_id AS known, x.request_digest = u.digest AS same,
           octet_length(p_input[u.o]) > l.max_input_bytes AS too_large, l.max_outstanding - l.outstanding AS room,
           CASE WHEN l.max_creates_per_second > 0
                THEN least(l.max_creates_per_second, l.creates_left + l.max_creates_per_second * extract(epoch FROM
                       greatest(interval '0', least(v_now - l.creates_at, interval '1 s')))) END AS rate,
           count(*) FILTER (WHERE x.task_id IS NULL AND octet_length(p_input[u.o]) <= l.max_input_bytes)
             OVER (PARTITION BY u.t ORDER BY u.o) AS nth
    FROM unnest(p_tenant, p_task, p_request, p_digest) WITH ORDINALITY u(t, id, r, digest, o)
    JOIN tenant l ON l.tenant_id = u.t
    LEFT JOIN task x ON x.tenant_id = u.t AND x.request_id = u.r
  )
  SELECT array_agg(CASE WHEN i.same THEN 'REPLAYED' WHEN i.known IS NOT NULL THEN 'REQUEST_ID_CONFLICT'
                        WHEN i.too_large THEN 'INPUT_TOO_LARGE' WHEN i.nth > i.room THEN 'OUTSTANDING_LIMIT'
                        WHEN i.nth > i.rate THEN 'CREATE_RATE' ELSE 'CREATED' END ORDER BY i.o),
         array_agg(coalesce(i.known, i.id) ORDER BY i.o)
  INTO v_outcome, v_id FROM item i;

  UPDATE tenant l SET creates_at = v_now,
    creates_left = least(l.max_creates_per_second, l.creates_left + l.max_creates_per_second * extract(epoch FROM
                     greatest(interval '0', least(v_now - l.creates_at, interval '1 s')))) - c.n
  FROM (SELECT p_tenant[u.o] AS t, count(*) FILTER (WHERE u.outcome = 'CREATED') AS n
        FROM unnest(v_outcome) WITH ORDINALITY u(outcome, o) GROUP BY 1) c
  WHERE l.tenant_id = c.t AND l.max_creates_per_second > 0;

  WITH new AS MATERIALIZED (
    SELECT u.o FROM unnest(v_outcome) WITH ORDINALITY u(outcome, o) WHERE u.outcome = 'CREATED'
  ), cold AS (
    INSERT INTO task (tenant_id, task_id, request_id, request_digest, tool, workflow, version, issuer, subject,
                      client_capabilities, output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms, trace_parent,
                      priority, media_type, input, created_at)
    SELECT p_tenant[o], p_task[o], p_request[o], p_digest[o], p_tool[o], p_workflow[o], p_version[o], p_issuer[o], p_subject[o],
           p_capabilities[o], p_schema[o], p_ttl_ms[o], p_poll_ms[o], p_deadline_ms[o], p_trace[o], p_priority[o], p_media[o],
           p_input[o], v_now
    FROM new
  ), hot AS (
    INSERT INTO task_state (tenant_id, task_id, workflow, version, priority, state, ready, ready_at, check_at, deadline_at,
                            abandon_at, ttl_ms, lines, changed_at)
    SELECT p_tenant[o], p_task[o], p_workflow[o], p_version[o], p_priority[o], 'QUEUED', true, v_now,
           least(d.at, a.at), d.at, a.at, p_ttl_ms[o], 1, v_now
    FROM new
    CROSS JOIN LATERAL (SELECT CASE WHEN p_deadline_ms[o] > 0 THEN v_now + p_deadline_ms[o] * interval '1 ms' END) d(at)
    CROSS JOIN LATERAL (SELECT CASE WHEN p_abandon_ms[o] > 0 THEN v_now + p_abandon_ms[o] * interval '1 ms' END) a(at)
  ), early AS (
    INSERT INTO early_answer (tenant_id, task_id, key, response)
    SELECT p_tenant[e.o], p_task[e.o], e.key, e.response FROM unnest(p_e_item, p_e_key, p_e_response) e(o, key, response)
    JOIN new ON new.o = e.o
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at) SELECT p_tenant[o], p_task[o], 0, 'CREATED', v_now FROM new
  )
  SELECT array_agg((p_tenant[o], p_workflow[o], p_version[o], 1, 0, 1)::delta) INTO v_deltas FROM new;
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.o, u.outcome, v_id[u.o], v_now, v_opened FROM unnest(v_outcome) WITH ORDINALITY u(outcome, o);
END $$;

-- Takes ready tasks for a worker: tenants in the order of their turn, at most `p_quantum` tasks of one tenant in one visit
-- while others have work too, by priority within it. `p_wait` is for a second pass after an empty first one: it waits for the
-- first tenant in turn, where the first pass skips those that others hold. `p_budget` bounds the bytes of contracts, which
-- ends the taking, and of inputs and wakes, which are then left out. A repeated request id returns what it took, as far as it is still
-- held, with leases that last as long as new ones.
CREATE FUNCTION tenure.claim_tasks(
  p_request text, p_worker text, p_workflow text[], p_version int[], p_tenants text[], p_lease_ms bigint,
  p_limit int, p_quantum int, p_wait boolean, p_budget int
) RETURNS TABLE (
  tenant_id text, task_id uuid, token bigint, epoch bigint, expires_at timestamptz, attempts int, crashes int, retries int,
  checkpoints int, cancel_requested boolean, deadline_at timestamptz, tool text, workflow text, version int, issuer text,
  subject text, client_capabilities bytea, output_schema bytea, ttl_ms bigint, poll_interval_ms bigint,
  execution_deadline_ms bigint, trace_parent text, media_type text, input bytea, created_at timestamptz,
  wake text, wake_step text, signal_id text, signal_name text, signal_media_type text, signal_data bytea,
  input_keys text[], input_responses bytea[], fits boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_tenant text[]; v_task uuid[]; v_token bigint[]; v_deltas delta[]; v_now timestamptz; v_wait boolean := p_wait;
  v_cand text[]; v_turn bigint[]; v_after bigint := -1; v_after_tenant text := ''; v_locked text[]; v_tried text[] := '{}';
  v_visits int := greatest(1, (p_limit + p_quantum - 1) / p_quantum); v_window int := 32 + 2 * v_visits;
BEGIN
  -- A repetition waits for the first, wherever it is under way, and so sees what it took.
  PERFORM pg_advisory_xact_lock(1, hashtext(p_worker));
  SELECT c.tenant_ids, c.task_ids, c.tokens INTO v_tenant, v_task, v_token
  FROM worker_claim c WHERE c.worker_id = p_worker AND c.request_id = p_request;
  IF v_tenant IS NOT NULL THEN
    PERFORM 1 FROM unnest(v_tenant, v_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
      ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
    v_now := task_now();
    UPDATE task_state s SET expires_at = greatest(s.expires_at, v_now + p_lease_ms * interval '1 ms')
    FROM unnest(v_tenant, v_task, v_token) u(t, id, k)
    WHERE s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = p_worker AND s.token = u.k AND s.expires_at > v_now;
  ELSE
    LOOP
      -- Candidates in the order of their turn: a bounded stretch of the turn index for each workflow, or the lanes of the
      -- tenants named. No lock, no effect.
      SELECT array_agg(x.tenant_id ORDER BY x.turn, x.tenant_id), array_agg(x.turn ORDER BY x.turn, x.tenant_id)
      INTO v_cand, v_turn FROM (
        SELECT l.tenant_id, min(l.turn) AS turn FROM unnest(p_workflow, p_version) c(w, v)
        CROSS JOIN LATERAL (
          (SELECT l.tenant_id, l.turn FROM lane l
           WHERE p_tenants IS NULL AND l.workflow = c.w AND l.version = c.v AND l.open
             AND (l.turn, l.tenant_id) > (v_after, v_after_tenant) AND l.tenant_id <> ALL (v_tried)
           ORDER BY l.turn, l.tenant_id LIMIT v_window)
          UNION ALL
          (SELECT n.tenant_id, n.turn FROM unnest(p_tenants) t(id) CROSS JOIN LATERAL (
             SELECT l.tenant_id, l.turn FROM lane l WHERE l.tenant_id = t.id AND l.workflow = c.w AND l.version = c.v
               AND l.open AND (l.turn, l.tenant_id) > (v_after, v_after_tenant) AND l.tenant_id <> ALL (v_tried) LIMIT 1) n
           ORDER BY n.turn, n.tenant_id LIMIT v_window)
        ) l
        GROUP BY 1 ORDER BY 2, 1 LIMIT v_window) x;
      IF v_cand IS NULL THEN RETURN; END IF;
      IF v_wait THEN
        PERFORM 1 FROM tenant t WHERE t.tenant_id = v_cand[1] FOR NO KEY UPDATE;
        v_wait := false;
        CONTINUE;    -- the candidates may be others by now; this one stays locked
      END IF;
      -- Lock as many of them as visits are wanted, in that order, skipping those that others hold.
      SELECT array_agg(x.tenant_id) INTO v_locked FROM (
        SELECT t.tenant_id FROM unnest(v_cand) WITH ORDINALITY c(tenant_id, o) JOIN tenant t ON t.tenant_id = c.tenant_id
        ORDER BY c.o LIMIT v_visits FOR NO KEY UPDATE OF t SKIP LOCKED) x;
      IF v_locked IS NULL THEN    -- others hold the whole stretch: the next one
        IF cardinality(v_cand) < v_window THEN RETURN; END IF;
        v_after := v_turn[v_window];
        v_after_tenant := v_cand[v_window];
        CONTINUE;
      END IF;
      v_now := task_now();
      -- A new statement and so a new snapshot: limits and tasks as they are now, under the lock.
      WITH room AS MATERIALIZED (
        SELECT t.tenant_id, t.turn,
               least(greatest(p_quantum, 1 + (p_limit - 1) / cardinality(v_locked)), t.max_leased - t.leased) AS n
        FROM tenant t WHERE t.tenant_id = ANY (v_locked) AND t.leased < t.max_leased
      ), pick AS MATERIALIZED (
        SELECT r.tenant_id, k.task_id, row_number() OVER (ORDER BY k.round, r.turn, r.tenant_id) AS o
        FROM room r CROSS JOIN LATERAL (
          SELECT q.task_id, row_number() OVER (ORDER BY q.priority DESC, q.ready_at, q.task_id) AS round
          FROM unnest(p_workflow, p_version) c(w, v) CROSS JOIN LATERAL (
            SELECT s.task_id, s.priority, s.ready_at FROM task_state s
            WHERE s.tenant_id = r.tenant_id AND s.workflow = c.w AND s.version = c.v AND s.ready
            ORDER BY s.priority DESC, s.ready_at, s.task_id LIMIT r.n FOR NO KEY UPDATE SKIP LOCKED) q
          ORDER BY round LIMIT r.n) k
        ORDER BY k.round, r.turn, r.tenant_id LIMIT p_limit
      ), fit AS MATERIALIZED (
        SELECT p.tenant_id, p.task_id, p.o,
               sum(octet_length(t.client_capabilities) + octet_length(t.output_schema)) OVER (ORDER BY p.o) AS bytes
        FROM pick p JOIN task t ON t.tenant_id = p.tenant_id AND t.task_id = p.task_id
      ), taken AS (
        UPDATE task_state s SET
          state = 'LEASED', ready = false, worker_id = p_worker, token = s.token + 1, attempts = s.attempts + 1, lived = false,
          expires_at = v_now + p_lease_ms * interval '1 ms', finish_token = NULL, finish_digest = NULL,
          check_at = least(v_now + p_lease_ms * interval '1 ms', s.deadline_at, s.abandon_at),
          lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
        FROM fit f WHERE f.bytes <= p_budget AND s.tenant_id = f.tenant_id AND s.task_id = f.task_id
        RETURNING f.o, s.tenant_id, s.task_id, s.workflow, s.version, s.token, s.lines - 1 AS line
      ), told AS (
        INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token)
        SELECT x.tenant_id, x.task_id, x.line, 'LEASED', v_now, p_worker, x.token FROM taken x
      )
      SELECT array_agg(x.tenant_id ORDER BY x.o), array_agg(x.task_id ORDER BY x.o), array_agg(x.token ORDER BY x.o),
             array_agg((x.tenant_id, x.workflow, x.version, 0, 1, -1)::delta)
      INTO v_tenant, v_task, v_token, v_deltas FROM taken x;
      EXIT WHEN v_tenant IS NOT NULL;
      v_tried := v_tried || v_locked;    -- what they had, others took before the lock, or hold now: the next ones
    END LOOP;
    PERFORM apply_deltas(v_deltas, p_take_turn => true);
    INSERT INTO worker_claim AS c (worker_id, request_id, tenant_ids, task_ids, tokens, claimed_at)
      VALUES (p_worker, p_request, v_tenant, v_task, v_token, v_now)
      ON CONFLICT (worker_id) DO UPDATE SET request_id = excluded.request_id, tenant_ids = excluded.tenant_ids,
        task_ids = excluded.task_ids, tokens = excluded.tokens, claimed_at = excluded.claimed_at;
  END IF;
  RETURN QUERY
  SELECT s.tenant_id, s.task_id, s.token, (SELECT e.epoch FROM epoch e), s.expires_at, s.attempts, s.crashes, s.retries,
         s.checkpoints, s.cancel_requested_at IS NOT NULL, s.deadline_at, t.tool, t.workflow, t.version, t.issuer, t.subject,
         t.client_capabilities, t.output_schema, t.ttl_ms, t.poll_interval_ms, t.execution_deadline_ms, t.trace_parent,
         t.media_type, CASE WHEN b.fits THEN t.input END, t.created_at, k.wake, k.step, k.signal_id, k.signal_name,
         k.signal_media_type, CASE WHEN b.fits THEN k.signal_data END, k.input_keys, CASE WHEN b.fits THEN k.input_responses END,
         b.fits
  FROM (
    SELECT u.*, sum(octet_length(x.client_capabilities) + octet_length(x.output_schema)) OVER ()
                + sum(octet_length(x.input) + coalesce(y.bytes, 0)) OVER (ORDER BY u.o) <= p_budget AS fits
    FROM unnest(v_tenant, v_task, v_token) WITH ORDINALITY u(tenant_id, task_id, token, o)
    JOIN task x ON x.tenant_id = u.tenant_id AND x.task_id = u.task_id
    LEFT JOIN wake y ON y.tenant_id = u.tenant_id AND y.task_id = u.task_id
  ) b
  JOIN task_state s ON s.tenant_id = b.tenant_id AND s.task_id = b.task_id AND s.token = b.token AND s.expires_at > v_now
  JOIN task t ON t.tenant_id = b.tenant_id AND t.task_id = b.task_id
  LEFT JOIN wake k ON k.tenant_id = b.tenant_id AND k.task_id = b.task_id
  ORDER BY b.o;
END $$;

-- Extends leases, never shortening one. Takes no tenant's lock and touches no indexed column.
CREATE FUNCTION tenure.heartbeat_tasks(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_lease_ms bigint[]
) RETURNS TABLE (ordinal bigint, outcome text, expires_at timestamptz, cancel_requested boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  RETURN QUERY
  WITH item AS (
    SELECT * FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch, p_lease_ms) WITH ORDINALITY u(t, id, w, k, e, ms, o)
  ), extended AS (
    UPDATE task_state s SET expires_at = greatest(s.expires_at, v_now + i.ms * interval '1 ms'), lived = true
    FROM item i WHERE s.tenant_id = i.t AND s.task_id = i.id AND s.worker_id = i.w AND s.token = i.k AND i.e = v_epoch
      AND s.expires_at > v_now
    RETURNING i.o, s.expires_at, s.cancel_requested_at IS NOT NULL AS wished
  )
  SELECT x.o, 'OK', x.expires_at, x.wished FROM extended x
  UNION ALL    -- not an outer join, which by nested loop would look at each pair
  SELECT i.o, 'LEASE_LOST', NULL, false FROM item i WHERE i.o NOT IN (SELECT x.o FROM extended x);
END $$;

-- Appends a checkpoint to each task: OK, LEASE_LOST, REVISION_CONFLICT or CHECKPOINT_LIMIT.
CREATE FUNCTION tenure.append_checkpoints(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_revision int[], p_step text[],
  p_media text[], p_data bytea[], p_max_count int, p_max_bytes bigint
) RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  RETURN QUERY
  WITH item AS (
    SELECT u.*, CASE
        WHEN s.task_id IS NULL THEN 'LEASE_LOST'
        WHEN s.checkpoints <> u.revision THEN 'REVISION_CONFLICT'
        WHEN u.revision >= p_max_count OR s.checkpoint_bytes + octet_length(p_data[u.o]) > p_max_bytes THEN 'CHECKPOINT_LIMIT'
        ELSE 'OK' END AS outcome
    FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch, p_revision) WITH ORDINALITY u(t, id, w, k, e, revision, o)
    LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch
      AND s.expires_at > v_now
  ), grown AS (
    UPDATE task_state s SET checkpoints = s.checkpoints + 1, lived = true,
      checkpoint_bytes = s.checkpoint_bytes + octet_length(p_data[i.o])
    FROM item i WHERE i.outcome = 'OK' AND s.tenant_id = i.t AND s.task_id = i.id
  ), kept AS (
    INSERT INTO checkpoint (tenant_id, task_id, revision, step, media_type, data, token, created_at)
    SELECT i.t, i.id, i.revision, p_step[i.o], p_media[i.o], p_data[i.o], i.k, v_now FROM item i WHERE i.outcome = 'OK'
  )
  SELECT i.o, i.outcome FROM item i;
END $$;

-- Records progress reports: OK with the report's number, or LEASE_LOST.
CREATE FUNCTION tenure.report_progress(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_value double precision[],
  p_total double precision[], p_message text[]
) RETURNS TABLE (ordinal bigint, outcome text, sequence bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  RETURN QUERY
  WITH item AS (
    SELECT * FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch) WITH ORDINALITY u(t, id, w, k, e, o)
  ), reported AS (
    UPDATE task_state s SET progress = s.progress + 1, lived = true, change = s.change + 1,
      changed_at = greatest(s.changed_at, v_now)
    FROM item i WHERE s.tenant_id = i.t AND s.task_id = i.id AND s.worker_id = i.w AND s.token = i.k AND i.e = v_epoch
      AND s.expires_at > v_now
    RETURNING i.o, s.tenant_id, s.task_id, s.progress
  ), ring AS (
    INSERT INTO progress AS p (tenant_id, task_id, slot, sequence, value, total, message)
    SELECT r.tenant_id, r.task_id, r.progress % 16, r.progress, p_value[r.o], p_total[r.o], p_message[r.o] FROM reported r
    ON CONFLICT (tenant_id, task_id, slot) DO UPDATE
      SET sequence = excluded.sequence, value = excluded.value, total = excluded.total, message = excluded.message
  )
  SELECT r.o, 'OK', r.progress FROM reported r
  UNION ALL
  SELECT i.o, 'LEASE_LOST', NULL FROM item i WHERE i.o NOT IN (SELECT r.o FROM reported r);
END $$;

-- Ends leases. The disposition is COMPLETED, FAILED, CANCELLED, RELEASED; FAILED with a retry policy that is not spent
-- becomes RETRIED. Work that would go back to the queue though its end was wished for is CANCELLED instead. The same finish
-- by the same lease is answered again; any other is LEASE_LOST. BUDGET_RESERVED while the task holds a reservation.
CREATE FUNCTION tenure.finish_tasks(
  p_tenant text[], p_task uuid[], p_worker text[], p_token bigint[], p_epoch bigint[], p_disposition text[], p_digest bytea[],
  p_media text[], p_data bytea[], p_code int[], p_message text[], p_delay_ms bigint[], p_max_attempts int[],
  p_initial_ms bigint[], p_max_ms bigint[]
) RETURNS TABLE (ordinal bigint, outcome text, retry_at timestamptz, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint; v_done bigint[]; v_deltas delta[]; v_opened text[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  SELECT e.epoch INTO v_epoch FROM epoch e;
  WITH held AS (
    SELECT u.o, u.t, u.id, u.w, u.k, s.retries, s.cancel_requested_at IS NOT NULL AS wished,
           CASE WHEN p_disposition[u.o] = 'FAILED' AND s.retries + 1 < p_max_attempts[u.o] THEN 'RETRIED'
                ELSE p_disposition[u.o] END AS event
    FROM unnest(p_tenant, p_task, p_worker, p_token, p_epoch) WITH ORDINALITY u(t, id, w, k, e, o)
    JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.worker_id = u.w AND s.token = u.k AND u.e = v_epoch
      AND s.expires_at > v_now AND s.recovery_ms IS NULL
  ), decided AS MATERIALIZED (
    SELECT h.o, h.t, h.id, h.w, h.k, e.event, e.event IN ('RETRIED', 'RELEASED') AS back, CASE e.event
        WHEN 'RETRIED' THEN random() * least(p_max_ms[h.o], p_initial_ms[h.o] * power(2, least(h.retries, 40)))
        WHEN 'RELEASED' THEN p_delay_ms[h.o] ELSE 0 END * interval '1 ms' AS delay
    FROM held h
    CROSS JOIN LATERAL (
      SELECT CASE WHEN h.wished AND h.event IN ('RETRIED', 'RELEASED') THEN 'CANCELLED' ELSE h.event END) e(event)
  ), ended AS (
    UPDATE task_state s SET
      state = CASE WHEN d.back THEN 'QUEUED' ELSE d.event END,
      ready = d.back AND d.delay = interval '0', ready_at = v_now + d.delay,
      check_at = CASE WHEN d.back THEN least(nullif(v_now + d.delay, v_now), s.deadline_at, s.abandon_at) END,
      worker_id = NULL, expires_at = NULL, retries = s.retries + (d.event = 'RETRIED')::int,
      finish_token = d.k, finish_digest = p_digest[d.o], lines = s.lines + 1, change = s.change + 1,
      changed_at = greatest(s.changed_at, v_now), ended_at = CASE WHEN NOT d.back THEN greatest(s.changed_at, v_now) END,
      handle_ends_at = CASE WHEN NOT d.back THEN greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms' END
    FROM decided d WHERE s.tenant_id = d.t AND s.task_id = d.id
    RETURNING d.o, d.event, d.w, d.k, d.back, s.tenant_id, s.task_id, s.workflow, s.version, s.ready, s.lines - 1 AS line
  ), kept AS (
    INSERT INTO outcome (tenant_id, task_id, media_type, data, error_code, error_message, error_reason)
    SELECT x.tenant_id, x.task_id, p_media[x.o], p_data[x.o], p_code[x.o], p_message[x.o],
           CASE WHEN x.event = 'FAILED' THEN 'WORKER' END
    FROM ended x WHERE x.event IN ('COMPLETED', 'FAILED')
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token, detail)
    SELECT x.tenant_id, x.task_id, x.line, x.event, v_now, x.w, x.k, coalesce(p_message[x.o], '') FROM ended x
  )
  SELECT array_agg(x.o),
         array_agg((x.tenant_id, x.workflow, x.version, CASE WHEN x.back THEN 0 ELSE -1 END, -1, x.ready::int)::delta)
  INTO v_done, v_deltas FROM ended x;
  PERFORM close_waits(p_tenant, p_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY
  SELECT u.o,
         CASE WHEN u.o = ANY (v_done) OR (s.finish_token = u.k AND s.finish_digest = u.digest AND u.e = v_epoch) THEN 'OK'
              WHEN s.recovery_ms IS NOT NULL AND s.worker_id = p_worker[u.o] AND s.token = u.k AND u.e = v_epoch
                AND s.expires_at > v_now THEN 'BUDGET_RESERVED'
              ELSE 'LEASE_LOST' END,
         CASE WHEN s.state = 'QUEUED' AND s.finish_token = u.k THEN s.ready_at END, v_opened
  FROM unnest(p_tenant, p_task, p_token, p_epoch, p_digest) WITH ORDINALITY u(t, id, k, e, digest, o)
  LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id;
END $$;

-- Wishes for the end of tasks, or ends them: NOT_FOUND, ALREADY_TERMINAL, REQUESTED (a worker runs it) or CANCELLED.
-- `p_live` are the states that a cancel may leave, from the table of transitions.
CREATE FUNCTION tenure.cancel_tasks(
  p_tenant text[], p_task uuid[], p_issuer text[], p_subject text[], p_force boolean[], p_live text[], p_grace_ms bigint
) RETURNS TABLE (ordinal bigint, outcome text, worker_id text, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_outcome text[]; v_worker text[]; v_deltas delta[]; v_opened text[]; v_held bigint[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  WITH item AS MATERIALIZED (
    SELECT u.o, u.t, u.id, s.state, s.ready, s.worker_id, s.token, s.cancel_requested_at, s.recovery_ms, CASE
        WHEN s.task_id IS NULL OR t.task_id IS NULL THEN 'NOT_FOUND'
        WHEN s.state <> ALL (p_live) THEN 'ALREADY_TERMINAL'
        WHEN s.state = 'LEASED' AND s.expires_at > v_now AND NOT p_force[u.o] THEN 'REQUESTED'
        ELSE 'CANCELLED' END AS outcome
    FROM unnest(p_tenant, p_task) WITH ORDINALITY u(t, id, o)
    LEFT JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    LEFT JOIN task t ON t.tenant_id = u.t AND t.task_id = u.id
      AND (p_issuer[u.o] IS NULL OR (t.issuer = p_issuer[u.o] AND t.subject = p_subject[u.o]))
  ), wished AS (
    UPDATE task_state s SET cancel_requested_at = v_now, cancel_at = v_now + p_grace_ms * interval '1 ms',
      check_at = least(s.check_at, v_now + p_grace_ms * interval '1 ms'),
      lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
    FROM item i WHERE i.outcome = 'REQUESTED' AND i.cancel_requested_at IS NULL AND s.tenant_id = i.t AND s.task_id = i.id
    RETURNING s.tenant_id, s.task_id, s.lines - 1 AS line
  ), ended AS (
    UPDATE task_state s SET state = 'CANCELLED', ready = false, check_at = NULL, worker_id = NULL, expires_at = NULL,
      recovery_ms = NULL, cancel_requested_at = coalesce(s.cancel_requested_at, v_now),
      lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now),
      ended_at = greatest(s.changed_at, v_now), handle_ends_at = greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms'
    FROM item i WHERE i.outcome = 'CANCELLED' AND s.tenant_id = i.t AND s.task_id = i.id
    RETURNING s.tenant_id, s.task_id, s.workflow, s.version, i.state AS was, i.ready AS was_ready, i.worker_id, i.token,
              s.lines - 1 AS line
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token)
    SELECT w.tenant_id, w.task_id, w.line, 'CANCEL_REQUESTED', v_now, NULL, NULL FROM wished w
    UNION ALL
    SELECT e.tenant_id, e.task_id, e.line, 'CANCELLED', v_now, e.worker_id, CASE WHEN e.worker_id IS NOT NULL THEN e.token END
    FROM ended e
  ), counted AS (
    SELECT array_agg((e.tenant_id, e.workflow, e.version, -1, -(e.was = 'LEASED')::int, -e.was_ready::int)::delta) AS deltas
    FROM ended e
  )
  SELECT array_agg(i.outcome ORDER BY i.o), array_agg(i.worker_id ORDER BY i.o), (SELECT c.deltas FROM counted c),
         array_agg(i.o) FILTER (WHERE i.outcome = 'CANCELLED' AND i.recovery_ms IS NOT NULL)
  INTO v_outcome, v_worker, v_deltas, v_held FROM item i;
  IF v_held IS NOT NULL THEN
    PERFORM forfeit_reservation(p_tenant[h.o], p_task[h.o], v_now, 'CANCELLED') FROM unnest(v_held) h(o);
  END IF;
  PERFORM close_waits(p_tenant, p_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.o, u.outcome, u.w, v_opened FROM unnest(v_outcome, v_worker) WITH ORDINALITY u(outcome, w, o);
END $$;

-- Says that tasks are still waited for, until `p_abandon_ms` from now, or for good where that is 0: OK or NOT_FOUND.
-- `check_at` only ever moves closer here, so that a renewal stays in its page; what looks then finds nothing due.
CREATE FUNCTION tenure.attach_tasks(p_tenant text[], p_task uuid[], p_issuer text[], p_subject text[], p_abandon_ms bigint[])
RETURNS TABLE (ordinal bigint, outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz;
BEGIN
  PERFORM 1 FROM unnest(p_tenant, p_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
    ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
  v_now := task_now();
  RETURN QUERY
  WITH item AS MATERIALIZED (
    SELECT u.o, u.t, u.id, t.task_id IS NOT NULL AS found,
           CASE WHEN p_abandon_ms[u.o] > 0 THEN v_now + p_abandon_ms[u.o] * interval '1 ms' END AS abandon_at
    FROM unnest(p_tenant, p_task) WITH ORDINALITY u(t, id, o)
    LEFT JOIN task t ON t.tenant_id = u.t AND t.task_id = u.id
      AND (p_issuer[u.o] IS NULL OR (t.issuer = p_issuer[u.o] AND t.subject = p_subject[u.o]))
  ), attached AS (
    UPDATE task_state s SET abandon_at = i.abandon_at, check_at = least(s.check_at, i.abandon_at)
    FROM item i WHERE i.found AND s.tenant_id = i.t AND s.task_id = i.id AND s.ended_at IS NULL
  )
  SELECT i.o, CASE WHEN i.found THEN 'OK' ELSE 'NOT_FOUND' END FROM item i;
END $$;

-- Brings along what has fallen due: leases that ran out, rests that are over, deadlines, cancels past their grace, tasks
-- that nobody waits for, reservations that nobody took over. Any claim may call it and a chore does; it is the only way by which time changes a task, and it
-- looks at each row under its lock, never at an earlier snapshot. Returns what it looked at.
--
-- A lease that ran out counts as a crash if its worker had been heard of; otherwise the answer to the claim may have been
-- lost. Past `p_max_crashes` leases, or ten, it counts all the same, as some work kills its worker before the first word.
CREATE FUNCTION tenure.promote_due(p_limit int, p_grace_ms bigint, p_max_crashes int)
RETURNS TABLE (tenant_id text, task_id uuid, event text, worker_id text, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now(); v_tenants text[]; v_deltas delta[]; v_opened text[];
  v_tenant text[]; v_task uuid[]; v_event text[]; v_worker text[]; v_forfeit text[]; v_due text[];
  v_after timestamptz := '-infinity';
BEGIN
  LOOP
    SELECT array_agg(DISTINCT d.tenant_id), max(d.check_at) INTO v_due, v_after FROM (
      SELECT s.tenant_id, s.check_at FROM task_state s WHERE s.check_at <= v_now AND s.check_at > v_after
      ORDER BY s.check_at LIMIT p_limit) d;
    IF v_due IS NULL THEN RETURN; END IF;
    SELECT array_agg(x.tenant_id) INTO v_tenants
    FROM (SELECT t.tenant_id FROM tenant t WHERE t.tenant_id = ANY (v_due) FOR NO KEY UPDATE SKIP LOCKED) x;
    EXIT WHEN v_tenants IS NOT NULL;    -- otherwise others hold all of these: what fell due after them
  END LOOP;
  v_now := task_now();
  WITH due AS MATERIALIZED (
    SELECT s.* FROM task_state s WHERE s.check_at <= v_now AND s.tenant_id = ANY (v_tenants)
    ORDER BY s.check_at LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED
  ), judged AS (
    SELECT d.*, d.state = 'LEASED' AND d.expires_at <= v_now AS dead,
           d.crashes + (d.state = 'LEASED' AND d.expires_at <= v_now
                        AND (d.lived OR d.attempts > greatest(p_max_crashes, 10)))::int AS crashed,
           w.until AS wait_until, w.kind AS wait_kind
    FROM due d LEFT JOIN wait w ON d.state = 'WAITING' AND w.tenant_id = d.tenant_id AND w.task_id = d.task_id
  ), ruled AS (
    SELECT j.*, CASE
        WHEN j.cancel_at <= v_now OR (j.dead AND j.cancel_requested_at IS NOT NULL) THEN 'CANCELLED'
        WHEN j.deadline_at <= v_now THEN 'FAILED'
        WHEN j.abandon_at <= v_now AND (j.state <> 'LEASED' OR j.dead) THEN 'CANCELLED'
        WHEN j.dead AND j.crashed > p_max_crashes THEN 'FAILED'
        WHEN j.dead THEN 'LEASE_EXPIRED'
        WHEN j.abandon_at <= v_now AND j.cancel_requested_at IS NULL THEN 'CANCEL_REQUESTED'
        WHEN j.state = 'QUEUED' AND NOT j.ready AND j.ready_at <= v_now THEN 'READY'
        WHEN j.wait_until <= v_now THEN 'WOKEN'
        ELSE 'NOTHING' END AS event
    FROM judged j
  ), decided AS MATERIALIZED (
    SELECT j.*, CASE WHEN j.recovery_ms IS NULL THEN NULL
        WHEN j.event IN ('CANCELLED', 'FAILED') THEN j.event
        WHEN coalesce(j.expires_at, j.ready_at) + j.recovery_ms * interval '1 ms' <= v_now THEN 'RECOVERY_EXPIRED'
        END AS forfeit
    FROM ruled j
  ), moved AS (
    UPDATE task_state s SET
      state = CASE WHEN d.event IN ('CANCELLED', 'FAILED') THEN d.event
                   WHEN d.event IN ('LEASE_EXPIRED', 'WOKEN') THEN 'QUEUED' ELSE s.state END,
      ready = d.event IN ('LEASE_EXPIRED', 'READY', 'WOKEN') OR (s.ready AND d.event = 'NOTHING'),
      ready_at = CASE d.event WHEN 'LEASE_EXPIRED' THEN s.expires_at WHEN 'WOKEN' THEN d.wait_until ELSE s.ready_at END,
      worker_id = CASE WHEN d.event NOT IN ('CANCELLED', 'FAILED', 'LEASE_EXPIRED') THEN s.worker_id END,
      expires_at = CASE WHEN d.event NOT IN ('CANCELLED', 'FAILED', 'LEASE_EXPIRED') THEN s.expires_at END,
      crashes = d.crashed, recovery_ms = CASE WHEN d.forfeit IS NULL THEN s.recovery_ms END,
      cancel_requested_at = CASE WHEN d.event = 'CANCEL_REQUESTED' THEN v_now ELSE s.cancel_requested_at END,
      cancel_at = CASE WHEN d.event = 'CANCEL_REQUESTED' THEN v_now + p_grace_ms * interval '1 ms' ELSE s.cancel_at END,
      abandon_at = CASE WHEN d.abandon_at > v_now THEN s.abandon_at END,
      check_at = CASE WHEN d.event NOT IN ('CANCELLED', 'FAILED') THEN least(
          CASE WHEN d.event = 'NOTHING' AND s.state = 'QUEUED' AND NOT s.ready THEN s.ready_at END,
          CASE WHEN d.event = 'NOTHING' THEN d.wait_until END,
          CASE WHEN d.forfeit IS NULL AND (s.state = 'QUEUED' OR d.event = 'LEASE_EXPIRED')
               THEN coalesce(s.expires_at, s.ready_at) + s.recovery_ms * interval '1 ms' END,
          CASE WHEN d.event <> 'LEASE_EXPIRED' THEN s.expires_at END,
          s.deadline_at,
          CASE WHEN d.event = 'CANCEL_REQUESTED' THEN v_now + p_grace_ms * interval '1 ms' ELSE s.cancel_at END,
          CASE WHEN d.abandon_at > v_now THEN s.abandon_at END) END,
      ended_at = CASE WHEN d.event IN ('CANCELLED', 'FAILED') THEN greatest(s.changed_at, v_now) END,
      handle_ends_at = CASE
        WHEN d.event IN ('CANCELLED', 'FAILED') THEN greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms' END,
      lines = s.lines + (d.event NOT IN ('READY', 'NOTHING'))::int,
      change = s.change + (d.event NOT IN ('READY', 'NOTHING'))::int,
      changed_at = CASE WHEN d.event IN ('READY', 'NOTHING') THEN s.changed_at ELSE greatest(s.changed_at, v_now) END
    FROM decided d WHERE s.tenant_id = d.tenant_id AND s.task_id = d.task_id
    RETURNING s.tenant_id, s.task_id, s.workflow, s.version, d.event, d.state AS was, d.ready AS was_ready, s.state, s.ready,
              d.worker_id, d.token, d.forfeit, s.lines - 1 AS line, d.deadline_at <= v_now AS late,
              CASE WHEN d.wait_kind = 'SIGNAL' THEN 'TIMEOUT' ELSE d.wait_kind END AS wake
  ), woken AS (
    UPDATE wait w SET wake = m.wake
    FROM moved m WHERE m.event = 'WOKEN' AND w.tenant_id = m.tenant_id AND w.task_id = m.task_id
  ), unanswered AS (
    UPDATE input_request r SET state = 'OVER'
    FROM moved m WHERE m.event = 'WOKEN' AND r.tenant_id = m.tenant_id AND r.task_id = m.task_id AND r.state = 'OPEN'
  ), kept AS (
    INSERT INTO outcome (tenant_id, task_id, error_code, error_message, error_reason)
    SELECT m.tenant_id, m.task_id, -32603,
           CASE WHEN m.late THEN 'The work ran past its execution deadline.'
                ELSE 'The work was given up: its workers were lost too often.' END,
           CASE WHEN m.late THEN 'EXECUTION_DEADLINE' ELSE 'CRASH_LIMIT' END
    FROM moved m WHERE m.event = 'FAILED'
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token, detail)
    SELECT m.tenant_id, m.task_id, m.line, m.event, v_now, m.worker_id, CASE WHEN m.worker_id IS NOT NULL THEN m.token END,
           CASE WHEN m.event = 'WOKEN' THEN m.wake WHEN m.event <> 'FAILED' THEN '' WHEN m.late THEN 'EXECUTION_DEADLINE'
                ELSE 'CRASH_LIMIT' END
    FROM moved m WHERE m.event NOT IN ('READY', 'NOTHING')
  )
  SELECT array_agg((m.tenant_id, m.workflow, m.version, CASE WHEN m.event IN ('CANCELLED', 'FAILED') THEN -1 ELSE 0 END,
                    (m.state = 'LEASED')::int - (m.was = 'LEASED')::int, m.ready::int - m.was_ready::int)::delta),
         array_agg(m.tenant_id), array_agg(m.task_id), array_agg(m.event), array_agg(m.worker_id),
         CASE WHEN count(m.forfeit) > 0 THEN array_agg(m.forfeit) END
  INTO v_deltas, v_tenant, v_task, v_event, v_worker, v_forfeit FROM moved m;
  IF v_forfeit IS NOT NULL THEN
    PERFORM forfeit_reservation(u.t, u.id, v_now, u.cause) FROM unnest(v_tenant, v_task, v_forfeit) u(t, id, cause)
      WHERE u.cause IS NOT NULL;
  END IF;
  PERFORM close_waits(v_tenant, v_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.t, u.id, u.event, u.w, v_opened FROM unnest(v_tenant, v_task, v_event, v_worker) u(t, id, event, w);
END $$;

-- Sets a tenant's policy; the last writer wins. Lanes follow at once. Returns the lanes that opened.
CREATE FUNCTION tenure.set_tenant_policy(
  p_tenant text, p_max_outstanding int, p_max_leased int, p_retention_ms bigint, p_max_input_bytes int,
  p_max_creates_per_second int
) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_opened text[];
BEGIN
  INSERT INTO tenant (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  UPDATE tenant SET max_outstanding = p_max_outstanding, max_leased = p_max_leased, retention_ms = p_retention_ms,
    max_input_bytes = p_max_input_bytes, max_creates_per_second = p_max_creates_per_second
    WHERE tenant_id = p_tenant;
  WITH laned AS (
    UPDATE lane l SET open = l.ready > 0 AND t.leased < t.max_leased, turn = t.turn
    FROM tenant t WHERE t.tenant_id = p_tenant AND l.tenant_id = p_tenant AND l.ready > 0
    RETURNING l.workflow, l.version, l.open
  )
  SELECT array_agg(x.workflow || '/' || x.version) INTO v_opened FROM laned x WHERE x.open;
  RETURN coalesce(v_opened, '{}');
END $$;

-- Removes ended tasks whose handle has ended and whose retention has passed since, in the order in which the handles ended,
-- and writes their tombstones. Only what got its tombstone here is removed.
CREATE FUNCTION tenure.remove_tasks(p_tenant text, p_limit int)
RETURNS SETOF tenure.tombstone LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_last bigint; v_retention interval; v_task uuid[]; v_budgeted boolean;
BEGIN
  SELECT t.tombstones, t.retention_ms * interval '1 ms', t.budgeted INTO v_last, v_retention, v_budgeted
  FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  IF v_last IS NULL THEN RETURN; END IF;
  v_now := task_now();
  WITH due AS MATERIALIZED (
    SELECT s.task_id, s.state, s.ended_at, s.handle_ends_at, t.tool, t.workflow, t.version, t.created_at
    FROM task_state s JOIN task t ON t.tenant_id = s.tenant_id AND t.task_id = s.task_id
    WHERE s.tenant_id = p_tenant AND s.handle_ends_at <= v_now - v_retention
    ORDER BY s.handle_ends_at, s.task_id LIMIT p_limit FOR UPDATE OF s SKIP LOCKED
  ), marked AS (
    INSERT INTO tombstone (tenant_id, cursor, task_id, tool, workflow, version, state, created_at, ended_at, removed_at)
    SELECT p_tenant, v_last + row_number() OVER (ORDER BY d.handle_ends_at, d.task_id), d.task_id, d.tool, d.workflow, d.version,
           d.state, d.created_at, d.ended_at, v_now
    FROM due d RETURNING task_id
  )
  SELECT array_agg(m.task_id) INTO v_task FROM marked m;
  IF v_task IS NULL THEN RETURN; END IF;
  UPDATE tenant SET tombstones = v_last + cardinality(v_task) WHERE tenant_id = p_tenant;
  DELETE FROM signal WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM input_request WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM early_answer WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM wait WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM checkpoint WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM outcome WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM progress WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM history WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  IF v_budgeted THEN
    DELETE FROM reservation WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  END IF;
  DELETE FROM task_state WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  DELETE FROM task WHERE tenant_id = p_tenant AND task_id = ANY (v_task);
  RETURN QUERY SELECT x.* FROM tombstone x WHERE x.tenant_id = p_tenant AND x.cursor > v_last ORDER BY x.cursor;
END $$;
