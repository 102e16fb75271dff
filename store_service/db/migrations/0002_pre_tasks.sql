-- Tasks: what was agreed, the state, one line for each transition; and their creation.

-- COLD, written once: what was agreed at a task's creation, and its input.
CREATE TABLE tenure.task (
  tenant_id             text COLLATE "C" NOT NULL,
  task_id               uuid NOT NULL,
  request_id            text COLLATE "C" NOT NULL,
  request_digest        bytea  NOT NULL,     -- SHA-256 of what was asked for, to tell a repetition from a conflict
  tool                  text   NOT NULL,
  workflow              text COLLATE "C" NOT NULL,
  version               int    NOT NULL,
  issuer                text   NOT NULL,
  subject               text   NOT NULL,
  client_capabilities   bytea  NOT NULL,
  output_schema         bytea  NOT NULL,
  ttl_ms                bigint NOT NULL,
  poll_interval_ms      bigint NOT NULL,
  execution_deadline_ms bigint NOT NULL,
  trace_parent          text   NOT NULL,
  trace_state           text   NOT NULL,
  baggage               text   NOT NULL,
  priority              int    NOT NULL,
  media_type            text   NOT NULL,
  input                 bytea  NOT NULL,
  created_at            timestamptz NOT NULL,
  reference             text COLLATE "C",    -- by which those find it who know no id of it; NULL = none
  early_answers         int  NOT NULL DEFAULT 0,  -- how many came with it
  forked_from           uuid,                -- the task whose first checkpoints it started with
  forked_checkpoints    int,
  PRIMARY KEY (tenant_id, task_id),
  UNIQUE (tenant_id, request_id),
  CHECK ((forked_from IS NULL) = (forked_checkpoints IS NULL))
);
ALTER TABLE tenure.task ALTER COLUMN input SET STORAGE EXTERNAL;
CREATE INDEX task_reference ON tenure.task (tenant_id, reference, created_at DESC) WHERE reference IS NOT NULL;
CREATE INDEX task_created ON tenure.task (tenant_id, created_at DESC, task_id DESC);

-- HOT. A task's state and lease. `expires_at` is in no index, so that a heartbeat stays in its page.
CREATE TABLE tenure.task_state (
  tenant_id           text COLLATE "C" NOT NULL,
  task_id             uuid NOT NULL,
  workflow            text COLLATE "C" NOT NULL,
  version             int     NOT NULL,
  priority            int     NOT NULL,
  created_at          timestamptz NOT NULL,
  state               text COLLATE "C" NOT NULL,
  ready               boolean NOT NULL,              -- QUEUED and not resting: it can be taken, and its lane counts it
  ready_at            timestamptz NOT NULL,          -- since when, or until when it rests
  check_at            timestamptz,                   -- when somebody must look again; NULL = nothing will fall due
  deadline_at         timestamptz,                   -- the execution deadline
  abandon_at          timestamptz,                   -- when nobody waits for it any more
  cancel_requested_at timestamptz,
  cancel_at           timestamptz,                   -- when a cancel that was asked for is forced
  worker_id           text COLLATE "C",
  token               bigint  NOT NULL DEFAULT 0,
  expires_at          timestamptz,
  lease_ms            bigint  NOT NULL DEFAULT 0,    -- how long the last lease lasts without a heartbeat
  lived               boolean NOT NULL DEFAULT false,  -- the lease's worker was heard of since it was granted
  attempts            int     NOT NULL DEFAULT 0,
  crashes             int     NOT NULL DEFAULT 0,
  retries             int     NOT NULL DEFAULT 0,
  checkpoints         int     NOT NULL DEFAULT 0,
  checkpoint_bytes    bigint  NOT NULL DEFAULT 0,
  progress            bigint  NOT NULL DEFAULT 0,
  lines               int     NOT NULL DEFAULT 0,
  change              bigint  NOT NULL DEFAULT 1,
  changed_at          timestamptz NOT NULL,
  ended_at            timestamptz,
  ttl_ms              bigint  NOT NULL,
  handle_ends_at      timestamptz,                   -- one ttl after its end
  redriven_at         timestamptz,                   -- when it was first sent back to work: its handle ended then
  failed_for          text COLLATE "C" CHECK (failed_for IN ('WORKER', 'CRASH_LIMIT', 'EXECUTION_DEADLINE')),
  finish_token        bigint,                        -- replay memory of the last finish, until the next claim
  finish_digest       bytea,
  recovery_ms         bigint,                        -- it holds a reservation, forfeited so long after its lease ran out
  held                boolean NOT NULL DEFAULT false,  -- it must be kept: see hold
  PRIMARY KEY (tenant_id, task_id),
  CHECK (state IN ('QUEUED', 'LEASED', 'WAITING', 'COMPLETED', 'FAILED', 'CANCELLED')),
  CHECK ((state = 'LEASED') = (worker_id IS NOT NULL)),
  CHECK ((state = 'LEASED') = (expires_at IS NOT NULL)),
  CHECK ((state IN ('COMPLETED', 'FAILED', 'CANCELLED')) = (ended_at IS NOT NULL)),
  CHECK ((ended_at IS NULL) = (handle_ends_at IS NULL)),
  CHECK ((state = 'FAILED') = (failed_for IS NOT NULL)),
  CHECK (NOT ready OR state = 'QUEUED'),
  CHECK (ended_at IS NULL OR (check_at IS NULL AND recovery_ms IS NULL))
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX task_ready ON tenure.task_state (tenant_id, workflow, version, priority DESC, ready_at, task_id) WHERE ready;
CREATE INDEX task_due ON tenure.task_state (check_at) WHERE check_at IS NOT NULL;
CREATE INDEX task_listed ON tenure.task_state (tenant_id, state, workflow, created_at, task_id);
CREATE INDEX task_failed ON tenure.task_state (tenant_id, workflow, version, failed_for, ended_at, task_id)
  WHERE state = 'FAILED';
CREATE INDEX task_ended ON tenure.task_state (tenant_id, handle_ends_at, task_id) WHERE handle_ends_at IS NOT NULL AND NOT held;

-- Append only. One line for each transition of a task.
CREATE TABLE tenure.history (
  tenant_id text COLLATE "C" NOT NULL,
  task_id   uuid NOT NULL,
  line      int  NOT NULL,
  event     text COLLATE "C" NOT NULL,
  at        timestamptz NOT NULL,
  worker_id text COLLATE "C",
  token     bigint,
  detail    text NOT NULL DEFAULT '',
  PRIMARY KEY (tenant_id, task_id, line)
);

-- Creates tasks. An item is CREATED, REPLAYED (its request id was used for the same content), REQUEST_ID_CONFLICT,
-- INPUT_TOO_LARGE, OUTSTANDING_LIMIT or CREATE_RATE. No two items share a request id. `p_contract` is the number of an item's
-- contract, of which most batches have one: those are arrays of their own, from `p_tool` to `p_baggage`.
CREATE FUNCTION tenure.create_tasks(
  p_tenant text[], p_task uuid[], p_request text[], p_digest bytea[], p_contract int[], p_priority int[], p_media text[],
  p_input bytea[], p_abandon_ms bigint[], p_reference text[], p_tool text[], p_workflow text[], p_version int[], p_issuer text[],
  p_subject text[], p_capabilities bytea[], p_schema bytea[], p_ttl_ms bigint[], p_poll_ms bigint[], p_deadline_ms bigint[],
  p_trace text[], p_trace_state text[], p_baggage text[], p_e_item bigint[], p_e_key text[], p_e_response bytea[],
  p_a_item bigint[], p_a_name text[]
) RETURNS TABLE (ordinal bigint, outcome text, task_id uuid, created_at timestamptz, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_missing boolean; v_now timestamptz; v_outcome text[]; v_id uuid[]; v_metered boolean; v_deltas delta[];
  v_opened text[];
BEGIN
  -- Whoever has a lane is a tenant, and both stay: most batches only look.
  v_missing := EXISTS (
    SELECT FROM (SELECT DISTINCT u.t, u.c FROM unnest(p_tenant, p_contract) u(t, c)) n
    WHERE NOT EXISTS (SELECT FROM lane l WHERE l.tenant_id = n.t AND l.workflow = p_workflow[n.c] AND l.version = p_version[n.c]));
  IF v_missing THEN
    INSERT INTO tenant (tenant_id) SELECT DISTINCT x FROM unnest(p_tenant) x ORDER BY 1 ON CONFLICT DO NOTHING;
  END IF;
  PERFORM 1 FROM tenant WHERE tenant_id = ANY (p_tenant) ORDER BY tenant_id FOR NO KEY UPDATE;
  v_now := task_now();
  IF v_missing THEN
    INSERT INTO lane (tenant_id, workflow, version, paused)
      SELECT n.t, n.w, n.v, is_paused(n.t, n.w, n.v)
      FROM (SELECT DISTINCT u.t, p_workflow[u.c] AS w, p_version[u.c] AS v FROM unnest(p_tenant, p_contract) u(t, c)
            ORDER BY 1, 2, 3) n
      WHERE NOT EXISTS (SELECT FROM lane l WHERE l.tenant_id = n.t AND l.workflow = n.w AND l.version = n.v);
  END IF;
  WITH item AS (
    SELECT u.*, x.task_id AS known, x.request_digest = u.digest AS same,
           octet_length(p_input[u.o]) > l.max_input_bytes AS too_large, l.max_outstanding - l.outstanding AS room,
           CASE WHEN l.max_creates_per_second > 0
                THEN least(l.max_creates_per_second, l.creates_left + l.max_creates_per_second * extract(epoch FROM
                       greatest(interval '0', least(v_now - l.creates_at, interval '1 s')))) END AS rate,
           count(*) FILTER (WHERE x.task_id IS NULL AND octet_length(p_input[u.o]) <= l.max_input_bytes)
             OVER (PARTITION BY l.tenant_id ORDER BY u.o) AS nth
    FROM unnest(p_tenant, p_task, p_request, p_digest, p_contract, p_priority)
         WITH ORDINALITY u(t, id, request, digest, c, priority, o)
    JOIN tenant l ON l.tenant_id = u.t
    LEFT JOIN task x ON x.tenant_id = u.t AND x.request_id = u.request
  ), decided AS MATERIALIZED (
    SELECT i.*, CASE WHEN i.same THEN 'REPLAYED' WHEN i.known IS NOT NULL THEN 'REQUEST_ID_CONFLICT'
                     WHEN i.too_large THEN 'INPUT_TOO_LARGE' WHEN i.nth > i.room THEN 'OUTSTANDING_LIMIT'
                     WHEN i.nth > i.rate THEN 'CREATE_RATE' ELSE 'CREATED' END AS outcome
    FROM item i
  ), new AS (
    SELECT d.* FROM decided d WHERE d.outcome = 'CREATED'
  ), cold AS (
    INSERT INTO task (tenant_id, task_id, request_id, request_digest, tool, workflow, version, issuer, subject,
                      client_capabilities, output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms, trace_parent,
                      trace_state, baggage, priority, media_type, input, created_at, reference, early_answers)
    SELECT t, id, request, digest, p_tool[c], p_workflow[c], p_version[c], p_issuer[c], p_subject[c], p_capabilities[c],
           p_schema[c], p_ttl_ms[c], p_poll_ms[c], p_deadline_ms[c], p_trace[c], p_trace_state[c], p_baggage[c], priority,
           p_media[o], p_input[o], v_now, p_reference[o], (SELECT count(*) FROM unnest(p_e_item) e WHERE e = o)
    FROM new
  ), hot AS (
    INSERT INTO task_state (tenant_id, task_id, workflow, version, priority, created_at, state, ready, ready_at, check_at,
                            deadline_at, abandon_at, ttl_ms, lines, changed_at)
    SELECT t, id, p_workflow[c], p_version[c], priority, v_now, 'QUEUED', true, v_now, least(e.deadline_at, e.abandon_at),
           e.deadline_at, e.abandon_at, p_ttl_ms[c], 1, v_now
    FROM new CROSS JOIN LATERAL (
      SELECT v_now + nullif(p_deadline_ms[c], 0) * interval '1 ms', v_now + nullif(p_abandon_ms[o], 0) * interval '1 ms'
    ) e(deadline_at, abandon_at)
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at) SELECT t, id, 0, 'CREATED', v_now FROM new
  ), counted AS (
    SELECT (t, p_workflow[c], p_version[c], count(*), 0, count(*), v_now)::delta AS delta FROM new GROUP BY t, c
  )
  SELECT array_agg(outcome ORDER BY o), array_agg(coalesce(known, id) ORDER BY o), bool_or(rate IS NOT NULL),
         (SELECT array_agg(delta) FROM counted)
  INTO v_outcome, v_id, v_metered, v_deltas FROM decided;
  IF cardinality(p_e_item) > 0 THEN
    INSERT INTO early_answer (tenant_id, task_id, key, response)
    SELECT p_tenant[e.o], p_task[e.o], e.key, e.response FROM unnest(p_e_item, p_e_key, p_e_response) e(o, key, response)
    WHERE v_outcome[e.o] = 'CREATED';
  END IF;
  IF cardinality(p_a_item) > 0 THEN    -- what was asked before the task: its keys are used
    INSERT INTO input_request (tenant_id, task_id, number, key, name, token, method, params, asked_at, state)
    SELECT p_tenant[a.o], p_task[a.o], row_number() OVER (PARTITION BY a.o ORDER BY a.n) - 1, a.name, a.name, 0, '', '', v_now,
           'OVER'
    FROM unnest(p_a_item, p_a_name) WITH ORDINALITY a(o, name, n) WHERE v_outcome[a.o] = 'CREATED';
  END IF;
  IF v_metered THEN
    UPDATE tenant l SET creates_at = v_now,
      creates_left = least(l.max_creates_per_second, l.creates_left + l.max_creates_per_second * extract(epoch FROM
                       greatest(interval '0', least(v_now - l.creates_at, interval '1 s')))) - c.n
    FROM (SELECT u.t, count(*) FILTER (WHERE u.outcome = 'CREATED') AS n
          FROM unnest(p_tenant, v_outcome) u(t, outcome) GROUP BY 1) c
    WHERE l.tenant_id = c.t AND l.max_creates_per_second > 0;
  END IF;
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.o, u.outcome, u.id, v_now, v_opened FROM unnest(v_outcome, v_id) WITH ORDINALITY u(outcome, id, o);
END $$;
