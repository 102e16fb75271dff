-- Leases: how workers get them and keep them.

-- What each worker's last claim took, so that a claim whose answer was lost can be answered again.
CREATE TABLE tenure.worker_claim (
  worker_id  text COLLATE "C" PRIMARY KEY,
  request_id text COLLATE "C" NOT NULL,
  tenant_ids text[]   NOT NULL,
  task_ids   uuid[]   NOT NULL,
  tokens     bigint[] NOT NULL,
  claimed_at timestamptz NOT NULL
) WITH (fillfactor = 60);

-- Since when the first ready task of a lane has been so; nothing is ready in it before `p_from`. What is ready is kept by
-- priority, so it looks at the first of each, of seven: with more of them `p_from` stays.
CREATE FUNCTION tenure.first_ready(p_tenant text, p_workflow text, p_version int, p_from timestamptz) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
DECLARE v_priority bigint := 2147483648; v_at timestamptz; v_first timestamptz := 'infinity';
BEGIN
  FOR _ IN 1..8 LOOP
    SELECT s.priority, s.ready_at INTO v_priority, v_at FROM task_state s
    WHERE s.tenant_id = p_tenant AND s.workflow = p_workflow AND s.version = p_version AND s.ready AND s.ready_at >= p_from
      AND s.priority < v_priority
    ORDER BY s.priority DESC, s.ready_at LIMIT 1;
    IF NOT FOUND THEN RETURN v_first; END IF;
    v_first := least(v_first, v_at);
    EXIT WHEN v_first = p_from;
  END LOOP;
  RETURN p_from;
END $$;

-- Takes ready tasks for a worker: tenants in the order of their turn, at most `p_quantum` tasks of one tenant in one visit
-- while others have work too, by priority within it. `p_wait` is for a second pass after an empty first one: it waits for the
-- first tenant in turn, and for its first task, where the first pass skips what others hold. `p_budget` bounds the bytes of
-- contracts, which ends the taking, and of inputs and wakes, which are then left out. A repeated request id returns what it took, as far as it is still
-- held, with leases that last as long as new ones. Each workflow has its own length of a lease. `more` says whether somebody
-- could still take something then: what is locked counts.
CREATE FUNCTION tenure.claim_tasks(
  p_request text, p_worker text, p_workflow text[], p_version int[], p_tenants text[], p_lease_ms bigint[],
  p_limit int, p_quantum int, p_wait boolean, p_budget int
) RETURNS TABLE (
  tenant_id text, task_id uuid, token bigint, epoch bigint, expires_at timestamptz, attempts int, crashes int, retries int,
  checkpoints int, cancel_requested boolean, deadline_at timestamptz, tool text, workflow text, version int, issuer text,
  subject text, client_capabilities bytea, output_schema bytea, ttl_ms bigint, poll_interval_ms bigint,
  execution_deadline_ms bigint, trace_parent text, trace_state text, baggage text, media_type text, input bytea, created_at timestamptz,
  wake text, wake_step text, signal_id text, signal_name text, signal_media_type text, signal_data bytea,
  input_keys text[], input_responses bytea[], early_answers int, fits boolean, lease_ms bigint, more boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  v_tenant text[]; v_task uuid[]; v_token bigint[]; v_deltas delta[]; v_now timestamptz; v_wait boolean := p_wait;
  v_cand text[]; v_turn bigint[]; v_after bigint := -1; v_after_tenant text := ''; v_locked text[]; v_tried text[] := '{}';
  v_visits int := greatest(1, (p_limit + p_quantum - 1) / p_quantum); v_window int := 32 + 2 * v_visits; v_more boolean;
BEGIN
  -- A repetition waits for the first, wherever it is under way, and so sees what it took.
  PERFORM pg_advisory_xact_lock(1, hashtext(p_worker));
  SELECT c.tenant_ids, c.task_ids, c.tokens INTO v_tenant, v_task, v_token
  FROM worker_claim c WHERE c.worker_id = p_worker AND c.request_id = p_request;
  IF v_tenant IS NOT NULL THEN
    PERFORM 1 FROM unnest(v_tenant, v_task) u(t, id) JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id
      ORDER BY s.tenant_id, s.task_id FOR NO KEY UPDATE OF s;
    v_now := task_now();
    UPDATE task_state s SET expires_at = greatest(s.expires_at, v_now + s.lease_ms * interval '1 ms')
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
      IF v_cand IS NULL THEN
        IF v_after = -1 AND v_tried = '{}' THEN    -- not even something that others hold: a row of no task
          more := false;
          RETURN NEXT;
        END IF;
        RETURN;
      END IF;
      IF v_wait THEN
        PERFORM set_config('lock_timeout', '2s', true);    -- others' work may come meanwhile
        PERFORM 1 FROM tenant t WHERE t.tenant_id = v_cand[1] FOR NO KEY UPDATE;
        -- And for its first task: whoever holds that without its tenant, as an attachment or the heartbeat of a lease that is
        -- over, tells nobody when it lets go. For one alone: to wait while others are held would be against the lock order.
        PERFORM 1 FROM unnest(p_workflow, p_version) c(w, v)
          JOIN lane l ON l.tenant_id = v_cand[1] AND l.workflow = c.w AND l.version = c.v AND l.open
          CROSS JOIN LATERAL (
            SELECT s.task_id FROM task_state s
            WHERE s.tenant_id = l.tenant_id AND s.workflow = l.workflow AND s.version = l.version AND s.ready
              AND s.ready_at >= l.ready_from
            ORDER BY s.priority DESC, s.ready_at, s.task_id LIMIT 1 FOR NO KEY UPDATE) q
          LIMIT 1;
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
        SELECT r.tenant_id, k.task_id, k.ms, row_number() OVER (ORDER BY k.round, r.turn, r.tenant_id) AS o
        FROM room r CROSS JOIN LATERAL (
          SELECT q.task_id, c.ms, row_number() OVER (ORDER BY q.priority DESC, q.ready_at, q.task_id) AS round
          FROM unnest(p_workflow, p_version, p_lease_ms) c(w, v, ms)
          JOIN lane l ON l.tenant_id = r.tenant_id AND l.workflow = c.w AND l.version = c.v AND l.open
          CROSS JOIN LATERAL (
            SELECT s.task_id, s.priority, s.ready_at FROM task_state s
            WHERE s.tenant_id = r.tenant_id AND s.workflow = c.w AND s.version = c.v AND s.ready AND s.ready_at >= l.ready_from
            ORDER BY s.priority DESC, s.ready_at, s.task_id LIMIT r.n FOR NO KEY UPDATE SKIP LOCKED) q
          ORDER BY round LIMIT r.n) k
        ORDER BY k.round, r.turn, r.tenant_id LIMIT p_limit
      ), fit AS MATERIALIZED (
        SELECT p.tenant_id, p.task_id, p.ms, p.o,
               sum(octet_length(t.client_capabilities) + octet_length(t.output_schema) + octet_length(t.baggage))
                 OVER (ORDER BY p.o) AS bytes
        FROM pick p JOIN task t ON t.tenant_id = p.tenant_id AND t.task_id = p.task_id
      ), taken AS (
        UPDATE task_state s SET
          state = 'LEASED', ready = false, worker_id = p_worker, token = s.token + 1, attempts = s.attempts + 1, lived = false,
          expires_at = v_now + f.ms * interval '1 ms', lease_ms = f.ms, finish_token = NULL, finish_digest = NULL,
          check_at = least(v_now + f.ms * interval '1 ms', s.deadline_at, s.abandon_at),
          lines = s.lines + 1, change = s.change + 1, changed_at = greatest(s.changed_at, v_now)
        FROM fit f WHERE f.bytes <= p_budget AND s.tenant_id = f.tenant_id AND s.task_id = f.task_id
        RETURNING f.o, s.tenant_id, s.task_id, s.workflow, s.version, s.token, s.lines - 1 AS line
      ), told AS (
        INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token)
        SELECT x.tenant_id, x.task_id, x.line, 'LEASED', v_now, p_worker, x.token FROM taken x
      ), counted AS (
        SELECT (x.tenant_id, x.workflow, x.version, 0, count(*), -count(*), NULL)::delta AS delta
        FROM taken x GROUP BY x.tenant_id, x.workflow, x.version
      )
      SELECT array_agg(x.tenant_id ORDER BY x.o), array_agg(x.task_id ORDER BY x.o), array_agg(x.token ORDER BY x.o),
             (SELECT array_agg(c.delta) FROM counted c)
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
  v_more := EXISTS (
    SELECT FROM unnest(p_workflow, p_version) c(w, v)
    CROSS JOIN LATERAL (
      (SELECT FROM lane l WHERE p_tenants IS NULL AND l.workflow = c.w AND l.version = c.v AND l.open LIMIT 1)
      UNION ALL
      (SELECT FROM unnest(p_tenants) t(id)
       JOIN lane l ON l.tenant_id = t.id AND l.workflow = c.w AND l.version = c.v AND l.open LIMIT 1)) o);
  RETURN QUERY
  SELECT b.tenant_id, b.task_id, b.token, (SELECT e.epoch FROM epoch e), b.expires_at, b.attempts, b.crashes, b.retries,
         b.checkpoints, b.wished, b.deadline_at, b.tool, b.workflow, b.version, b.issuer, b.subject,
         b.client_capabilities, b.output_schema, b.ttl_ms, b.poll_interval_ms, b.execution_deadline_ms, b.trace_parent, b.trace_state,
         b.baggage, b.media_type, CASE WHEN b.fits THEN b.input END, b.created_at, b.wake, b.step, b.signal_id, b.signal_name,
         b.signal_media_type, CASE WHEN b.fits THEN b.signal_data END, b.input_keys, CASE WHEN b.fits THEN b.input_responses END,
         b.early_answers, b.fits, b.lease_ms, v_more
  FROM (
    SELECT u.o, t.*, s.token, s.expires_at, s.attempts, s.crashes, s.retries, s.checkpoints, s.deadline_at,
           s.lease_ms, s.cancel_requested_at IS NOT NULL AS wished, k.*,
           sum(octet_length(t.client_capabilities) + octet_length(t.output_schema) + octet_length(t.baggage)) OVER ()
             + sum(octet_length(t.input) + coalesce(k.bytes, 0)) OVER (ORDER BY u.o) <= p_budget AS fits
    FROM unnest(v_tenant, v_task, v_token) WITH ORDINALITY u(t, id, k, o)
    JOIN task_state s ON s.tenant_id = u.t AND s.task_id = u.id AND s.token = u.k AND s.expires_at > v_now
    JOIN task t ON t.tenant_id = u.t AND t.task_id = u.id
    LEFT JOIN LATERAL (    -- a wait that ended is seen by the second claim at the earliest
      SELECT w.wake, w.step, w.signal_id, w.signal_name, w.signal_media_type, w.signal_data, w.input_keys, w.input_responses, w.bytes
      FROM wake w WHERE s.token > 1 AND w.tenant_id = u.t AND w.task_id = u.id OFFSET 0) k ON true
  ) b
  ORDER BY b.o;
END $$;

-- Extends leases, never shortening one, by 0 as long as they were granted for. Takes no tenant's lock and touches no indexed
-- column.
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
    UPDATE task_state s SET lived = true,
      expires_at = greatest(s.expires_at, v_now + coalesce(nullif(i.ms, 0), s.lease_ms) * interval '1 ms')
    FROM item i WHERE s.tenant_id = i.t AND s.task_id = i.id AND s.worker_id = i.w AND s.token = i.k AND i.e = v_epoch
      AND s.expires_at > v_now
    RETURNING i.o, s.expires_at, s.cancel_requested_at IS NOT NULL AS wished
  )
  SELECT x.o, 'OK', x.expires_at, x.wished FROM extended x
  UNION ALL    -- not an outer join, which by nested loop would look at each pair
  SELECT i.o, 'LEASE_LOST', NULL, false FROM item i WHERE i.o NOT IN (SELECT x.o FROM extended x);
END $$;
