-- Budgets: what a tenant's tasks may use in a window of time. A worker reserves before it runs a task and settles after it.
--
-- A quantity is a vector of six: tokens, cost in micro-USD, duration in us, turns, tool calls, delegations. In all that
-- belongs to one budget, the same elements are NULL: the dimensions that it has no limit for, which nobody counts.
--
-- A task that holds a reservation says so in its own row, by `recovery_ms`. So whoever ends tasks or leases knows it without
-- another look; and a heartbeat keeps a reservation without touching it, as its end counts from the end of the lease.

-- The ledger. A row for each tenant that has a budget, or had one, which then has no limits. Written under the tenant's lock,
-- by change_budget.
CREATE TABLE tenure.budget (
  tenant_id         text COLLATE "C" PRIMARY KEY,
  facts             bigint NOT NULL DEFAULT 0,     -- the last cursor given to a fact
  limits            bigint[],
  window_ms         bigint,
  recovery_ms       bigint,
  window_started_at timestamptz,
  committed         bigint[],                      -- used in this window, or lost with a worker and so taken for used
  reserved          bigint[],                      -- what the reservations hold
  reservations      int NOT NULL DEFAULT 0 CHECK (reservations >= 0),
  CHECK (cardinality(limits) = 6 AND window_ms > 0 AND recovery_ms >= 0),
  CHECK ((limits IS NULL) = (committed IS NULL) AND (limits IS NULL) = (reserved IS NULL)),
  CHECK (limits IS NOT NULL OR reservations = 0)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The reservation that a task holds, or the last one it held and how that ended, until the task is removed. One row a task.
CREATE TABLE tenure.reservation (
  tenant_id   text COLLATE "C" NOT NULL,
  task_id     uuid   NOT NULL,
  worker_id   text COLLATE "C" NOT NULL,           -- who reserved, or took over
  token       bigint NOT NULL,
  baseline    bigint[] NOT NULL,                   -- the task's use up to which all is committed
  amount      bigint[] NOT NULL,                   -- what is held from there on
  reserved_at timestamptz NOT NULL,
  ended       text COLLATE "C" CHECK (ended IN ('SETTLED', 'USAGE_EXCEEDED', 'FORFEITED')),   -- NULL = it holds
  charged     bigint[],                            -- of the amount, at the end
  digest      bytea,                               -- replay memory of the settlement
  PRIMARY KEY (tenant_id, task_id),
  CHECK ((ended IS NULL) = (charged IS NULL))
) WITH (fillfactor = 60);

-- Append only. One fact for each change of a ledger and each refusal, in the order in which they became visible.
CREATE TABLE tenure.budget_fact (
  tenant_id          text COLLATE "C" NOT NULL,
  cursor             bigint NOT NULL,
  kind               text COLLATE "C" NOT NULL,
  cause              text COLLATE "C",
  at                 timestamptz NOT NULL,
  task_id            uuid,
  worker_id          text COLLATE "C",
  token              bigint,
  amount             bigint[],                     -- asked for, observed, or lost, by its kind
  charged            bigint[],                     -- from reserved to committed
  released           bigint[],                     -- from reserved to nobody
  reservation_age_ms bigint,
  limits             bigint[],                     -- from here on: the ledger after it
  window_ms          bigint,
  recovery_ms        bigint,
  window_started_at  timestamptz,
  committed          bigint[],
  reserved           bigint[],
  reservations       int NOT NULL,
  PRIMARY KEY (tenant_id, cursor),
  CHECK (kind IN ('POLICY_CONFIGURED', 'POLICY_REMOVED', 'WINDOW_RESET', 'RESERVED', 'ADOPTED', 'ADMISSION_DENIED',
                  'USAGE_EXCEEDED', 'SETTLED', 'FORFEITED')),
  CHECK ((kind = 'FORFEITED') = (cause IS NOT NULL) AND cause IN ('CANCELLED', 'FAILED', 'RECOVERY_EXPIRED'))
);
CREATE FUNCTION tenure.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'rows of % are never changed', TG_TABLE_NAME;
END $$;
CREATE TRIGGER budget_fact_stays BEFORE UPDATE ON tenure.budget_fact
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();

CREATE FUNCTION tenure.vector_plus(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT array_agg(u.x + u.y ORDER BY u.o) FROM unnest(a, b) WITH ORDINALITY u(x, y, o)';
CREATE FUNCTION tenure.vector_minus(a bigint[], b bigint[]) RETURNS bigint[] LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS 'SELECT array_agg(u.x - u.y ORDER BY u.o) FROM unnest(a, b) WITH ORDINALITY u(x, y, o)';

-- The one place that writes the ledger, and the fact of each change. The caller holds the tenant.
CREATE FUNCTION tenure.change_budget(
  p_tenant text, p_now timestamptz, p_kind text, p_of reservation DEFAULT NULL, p_amount bigint[] DEFAULT NULL,
  p_charged bigint[] DEFAULT NULL, p_released bigint[] DEFAULT NULL, p_cause text DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_zero bigint[];
BEGIN
  SELECT vector_minus(b.limits, b.limits) INTO v_zero FROM budget b WHERE b.tenant_id = p_tenant;
  WITH changed AS (
    UPDATE budget b SET
      facts = b.facts + 1,
      window_started_at = CASE WHEN p_kind = 'WINDOW_RESET' THEN p_now ELSE b.window_started_at END,
      committed = CASE WHEN p_kind = 'WINDOW_RESET' THEN v_zero
                       ELSE vector_plus(b.committed, coalesce(p_charged, v_zero)) END,
      reserved = vector_minus(vector_plus(b.reserved, CASE WHEN p_kind = 'RESERVED' THEN p_amount ELSE v_zero END),
                              vector_plus(coalesce(p_charged, v_zero), coalesce(p_released, v_zero))),
      reservations = b.reservations + CASE
        WHEN p_kind = 'RESERVED' THEN 1 WHEN p_kind IN ('SETTLED', 'USAGE_EXCEEDED', 'FORFEITED') THEN -1 ELSE 0 END
    WHERE b.tenant_id = p_tenant
    RETURNING b.*
  )
  INSERT INTO budget_fact (tenant_id, cursor, kind, cause, at, task_id, worker_id, token, amount, charged, released,
                           reservation_age_ms, limits, window_ms, recovery_ms, window_started_at, committed, reserved,
                           reservations)
  SELECT c.tenant_id, c.facts, p_kind, p_cause, p_now, p_of.task_id, p_of.worker_id, p_of.token, p_amount, p_charged, p_released,
         floor(extract(epoch FROM greatest(p_now - p_of.reserved_at, interval '0')) * 1000), c.limits, c.window_ms,
         c.recovery_ms, c.window_started_at, c.committed, c.reserved, c.reservations
  FROM changed c;
END $$;

-- Sets a tenant's budget, or takes it away where `p_limits` is NULL, and starts a new window: OK, or BUDGET_RESERVED while
-- anything is reserved. BUDGET_NOT_CONFIGURED where there is none to take away.
CREATE FUNCTION tenure.set_budget_policy(p_tenant text, p_limits bigint[], p_window_ms bigint, p_recovery_ms bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz; v_zero bigint[] := vector_minus(p_limits, p_limits); v_reservations int; v_configured boolean;
BEGIN
  IF p_limits IS NOT NULL THEN
    INSERT INTO tenant (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  END IF;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT b.reservations, b.limits IS NOT NULL INTO v_reservations, v_configured FROM budget b WHERE b.tenant_id = p_tenant;
  IF v_reservations > 0 THEN RETURN 'BUDGET_RESERVED'; END IF;
  IF p_limits IS NULL AND v_configured IS NOT TRUE THEN RETURN 'BUDGET_NOT_CONFIGURED'; END IF;
  UPDATE tenant SET budgeted = true WHERE tenant_id = p_tenant AND NOT budgeted;
  INSERT INTO budget AS b (tenant_id, limits, window_ms, recovery_ms, window_started_at, committed, reserved)
    VALUES (p_tenant, p_limits, p_window_ms, p_recovery_ms, v_now, v_zero, v_zero)
    ON CONFLICT (tenant_id) DO UPDATE SET limits = excluded.limits, window_ms = excluded.window_ms,
      recovery_ms = excluded.recovery_ms, window_started_at = excluded.window_started_at, committed = excluded.committed,
      reserved = excluded.reserved;
  PERFORM change_budget(p_tenant, v_now, CASE WHEN p_limits IS NULL THEN 'POLICY_REMOVED' ELSE 'POLICY_CONFIGURED' END);
  RETURN 'OK';
END $$;

-- Reserves for a leased task what lies between `p_baseline`, its use so far, and `p_limits`, what its definition allows it.
-- Where the task holds a reservation already, by a worker that was lost or by an answer that was, it is adopted: what was used
-- of it is committed. OK with what is held now, LEASE_LOST, BUDGET_NOT_CONFIGURED, UNBOUNDED, BUDGET_CONFLICT, BUDGET_DENIED,
-- or BUDGET_EXCEEDED, which ends the reservation and charges all of it.
CREATE FUNCTION tenure.reserve_budget(
  p_tenant text, p_task uuid, p_worker text, p_token bigint, p_epoch bigint, p_limits bigint[], p_baseline bigint[]
) RETURNS TABLE (outcome text, amount bigint[], adopted boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_budgeted boolean; v_budget budget; v_zero bigint[]; v_held reservation; v_amount bigint[];
  v_outcome text;
BEGIN
  SELECT t.budgeted INTO v_budgeted FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state s WHERE s.tenant_id = p_tenant AND s.task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF v_budgeted THEN
    SELECT b.* INTO v_budget FROM budget b WHERE b.tenant_id = p_tenant AND b.limits IS NOT NULL;
  END IF;
  v_outcome := CASE
    WHEN NOT EXISTS (SELECT FROM task_state s WHERE s.tenant_id = p_tenant AND s.task_id = p_task AND s.worker_id = p_worker
                       AND s.token = p_token AND p_epoch = (SELECT e.epoch FROM epoch e) AND s.expires_at > v_now)
      THEN 'LEASE_LOST'
    WHEN v_budget.tenant_id IS NULL THEN 'BUDGET_NOT_CONFIGURED'
    WHEN EXISTS (SELECT FROM unnest(v_budget.limits, p_limits) u(tenants, own) WHERE u.tenants IS NOT NULL AND u.own IS NULL)
      THEN 'UNBOUNDED' END;
  IF v_outcome IS NOT NULL THEN
    RETURN QUERY SELECT v_outcome, NULL::bigint[], false;
    RETURN;
  END IF;

  SELECT r.* INTO v_held FROM reservation r WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.ended IS NULL;
  IF v_held.task_id IS NOT NULL THEN
    v_amount := vector_minus(p_baseline, v_held.baseline);    -- used since
    IF 0 > ANY (v_amount) OR vector_minus(p_limits, v_held.baseline) IS DISTINCT FROM v_held.amount THEN
      RETURN QUERY SELECT 'BUDGET_CONFLICT', NULL::bigint[], false;
      RETURN;
    END IF;
    IF 0 > ANY (vector_minus(v_held.amount, v_amount)) THEN
      PERFORM end_reservation(v_held, v_now, 'USAGE_EXCEEDED', v_amount, v_held.amount, NULL, NULL);
      RETURN QUERY SELECT 'BUDGET_EXCEEDED', NULL::bigint[], false;
      RETURN;
    END IF;
    IF v_held.token <> p_token OR 0 < ANY (v_amount) THEN
      UPDATE reservation r SET worker_id = p_worker, token = p_token, baseline = vector_plus(r.baseline, v_amount),
        amount = vector_minus(r.amount, v_amount) WHERE r.tenant_id = p_tenant AND r.task_id = p_task RETURNING r.* INTO v_held;
      UPDATE task_state s SET lived = true WHERE s.tenant_id = p_tenant AND s.task_id = p_task AND NOT s.lived;
      PERFORM change_budget(p_tenant, v_now, 'ADOPTED', v_held, v_amount, v_amount);
    END IF;
    RETURN QUERY SELECT 'OK', v_held.amount, true;
    RETURN;
  END IF;

  v_zero := vector_minus(v_budget.limits, v_budget.limits);
  v_amount := vector_plus(vector_minus(p_limits, p_baseline), v_zero);
  IF 0 > ANY (v_amount) THEN
    RETURN QUERY SELECT 'BUDGET_CONFLICT', NULL::bigint[], false;
    RETURN;
  END IF;
  IF v_budget.reservations = 0 AND v_now >= v_budget.window_started_at + v_budget.window_ms * interval '1 ms' THEN
    PERFORM change_budget(p_tenant, v_now, 'WINDOW_RESET');
    v_budget.committed := v_zero;
  END IF;
  v_held := (p_tenant, p_task, p_worker, p_token, vector_plus(p_baseline, v_zero), v_amount, v_now, NULL, NULL, NULL)::reservation;
  IF 0 > ANY (vector_minus(vector_minus(v_budget.limits, v_budget.committed), vector_plus(v_budget.reserved, v_amount))) THEN
    v_held.reserved_at := NULL;
    PERFORM change_budget(p_tenant, v_now, 'ADMISSION_DENIED', v_held, v_amount);
    RETURN QUERY SELECT 'BUDGET_DENIED', NULL::bigint[], false;
    RETURN;
  END IF;
  DELETE FROM reservation r WHERE r.tenant_id = p_tenant AND r.task_id = p_task;
  INSERT INTO reservation SELECT v_held.*;
  UPDATE task_state s SET recovery_ms = v_budget.recovery_ms, lived = true WHERE s.tenant_id = p_tenant AND s.task_id = p_task;
  PERFORM change_budget(p_tenant, v_now, 'RESERVED', v_held, v_amount);
  RETURN QUERY SELECT 'OK', v_amount, false;
END $$;

-- Commits what a leased task has used and gives the rest of its reservation back: OK, LEASE_LOST, BUDGET_NOT_CONFIGURED,
-- BUDGET_CONFLICT, or BUDGET_EXCEEDED, which ends the reservation and charges all of it. `p_usage` is the task's use in its
-- whole life. The same settlement by the same lease is answered again.
CREATE FUNCTION tenure.settle_budget(
  p_tenant text, p_task uuid, p_worker text, p_token bigint, p_epoch bigint, p_usage bigint[], p_digest bytea
) RETURNS TABLE (outcome text, charged bigint[], released bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_budgeted boolean; v_held reservation; v_used bigint[]; v_outcome text;
BEGIN
  SELECT t.budgeted INTO v_budgeted FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state s WHERE s.tenant_id = p_tenant AND s.task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  IF v_budgeted THEN
    SELECT r.* INTO v_held FROM reservation r WHERE r.tenant_id = p_tenant AND r.task_id = p_task;
  END IF;
  IF v_held.ended IS NOT NULL AND v_held.digest = p_digest AND v_held.token = p_token
     AND p_epoch = (SELECT e.epoch FROM epoch e) THEN
    RETURN QUERY SELECT CASE v_held.ended WHEN 'SETTLED' THEN 'OK' ELSE 'BUDGET_EXCEEDED' END, v_held.charged,
                        vector_minus(v_held.amount, v_held.charged);
    RETURN;
  END IF;
  v_used := vector_minus(p_usage, v_held.baseline);
  v_outcome := CASE
    WHEN NOT EXISTS (SELECT FROM task_state s WHERE s.tenant_id = p_tenant AND s.task_id = p_task AND s.worker_id = p_worker
                       AND s.token = p_token AND p_epoch = (SELECT e.epoch FROM epoch e) AND s.expires_at > v_now)
      THEN 'LEASE_LOST'
    WHEN v_held.task_id IS NULL AND NOT EXISTS (
      SELECT FROM budget b WHERE v_budgeted AND b.tenant_id = p_tenant AND b.limits IS NOT NULL) THEN 'BUDGET_NOT_CONFIGURED'
    WHEN v_held.task_id IS NULL OR v_held.ended IS NOT NULL OR 0 > ANY (v_used) THEN 'BUDGET_CONFLICT'
    WHEN 0 > ANY (vector_minus(v_held.amount, v_used)) THEN 'BUDGET_EXCEEDED'
    ELSE 'OK' END;
  v_held.worker_id := p_worker;    -- who settles, taken over or not
  v_held.token := p_token;
  IF v_outcome = 'OK' THEN
    PERFORM end_reservation(v_held, v_now, 'SETTLED', v_used, v_used, NULL, p_digest);
  ELSIF v_outcome = 'BUDGET_EXCEEDED' THEN
    PERFORM end_reservation(v_held, v_now, 'USAGE_EXCEEDED', v_used, v_held.amount, NULL, p_digest);
  END IF;
  RETURN QUERY SELECT v_outcome, v_used, vector_minus(v_held.amount, v_used);
END $$;

-- Ends a reservation: what is charged of it is committed, the rest is nobody's. The caller holds tenant and task.
CREATE FUNCTION tenure.end_reservation(
  p_held reservation, p_now timestamptz, p_how text, p_amount bigint[], p_charged bigint[], p_cause text, p_digest bytea
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE reservation r SET ended = p_how, charged = p_charged, worker_id = p_held.worker_id, token = p_held.token,
    digest = p_digest WHERE r.tenant_id = p_held.tenant_id AND r.task_id = p_held.task_id;
  UPDATE task_state s SET recovery_ms = NULL WHERE s.tenant_id = p_held.tenant_id AND s.task_id = p_held.task_id
    AND s.recovery_ms IS NOT NULL;
  PERFORM change_budget(p_held.tenant_id, p_now, p_how, p_held, p_amount, p_charged, vector_minus(p_held.amount, p_charged), p_cause);
END $$;

-- Ends the reservation of a task that ended, or that nobody took over, by charging all of it: nobody knows what was used. The
-- caller holds tenant and task.
CREATE FUNCTION tenure.forfeit_reservation(p_tenant text, p_task uuid, p_now timestamptz, p_cause text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_held reservation;
BEGIN
  SELECT r.* INTO STRICT v_held FROM reservation r WHERE r.tenant_id = p_tenant AND r.task_id = p_task AND r.ended IS NULL;
  PERFORM end_reservation(v_held, p_now, 'FORFEITED', v_held.amount, v_held.amount, p_cause, NULL);
END $$;

-- Ledgers against their reservations, their last facts and their limits, and tasks against the reservations that they say they
-- hold. It returns no row, ever.
CREATE VIEW tenure.budget_audit AS
SELECT b.tenant_id, b.reservations, b.reserved, b.committed, b.limits, h.held, h.vector, h.said, f.cursor AS last_fact
FROM tenure.budget b
LEFT JOIN LATERAL (
  SELECT x.* FROM tenure.budget_fact x WHERE x.tenant_id = b.tenant_id ORDER BY x.cursor DESC LIMIT 1) f ON true
CROSS JOIN LATERAL (
  SELECT (SELECT count(*) FROM tenure.reservation r WHERE r.tenant_id = b.tenant_id AND r.ended IS NULL) AS held,
         (SELECT count(*) FROM tenure.reservation r JOIN tenure.task_state s ON s.tenant_id = r.tenant_id AND s.task_id = r.task_id
          WHERE r.tenant_id = b.tenant_id AND r.ended IS NULL AND s.recovery_ms IS NOT NULL) AS said,
         (SELECT count(*) FROM tenure.task_state s WHERE s.tenant_id = b.tenant_id AND s.recovery_ms IS NOT NULL) AS saying,
         (SELECT array_agg(v.total ORDER BY v.o) FROM (
            SELECT u.o, sum(u.x)::bigint AS total FROM tenure.reservation r CROSS JOIN unnest(r.amount) WITH ORDINALITY u(x, o)
            WHERE r.tenant_id = b.tenant_id AND r.ended IS NULL GROUP BY u.o) v) AS vector
) h
WHERE h.held <> b.reservations OR h.said <> h.held OR h.saying <> h.held
  OR b.reserved IS DISTINCT FROM coalesce(h.vector, tenure.vector_minus(b.limits, b.limits))
  OR 0 > ANY (tenure.vector_minus(b.limits, tenure.vector_plus(b.committed, b.reserved)))
  OR 0 > ANY (b.reserved) OR 0 > ANY (b.committed)
  OR (b.facts, b.limits, b.committed, b.reserved, b.reservations, b.window_started_at)
     IS DISTINCT FROM (f.cursor, f.limits, f.committed, f.reserved, f.reservations, f.window_started_at);

-- As in the file before.
DO $$
DECLARE f text; setting text;
BEGIN
  FOREACH f IN ARRAY '{change_budget,set_budget_policy,reserve_budget,settle_budget,end_reservation,forfeit_reservation}'::text[] LOOP
    FOREACH setting IN ARRAY '{"search_path = tenure, pg_temp","enable_seqscan = off","enable_hashjoin = off","enable_mergejoin = off","plan_cache_mode = force_generic_plan"}'::text[] LOOP
      EXECUTE format('ALTER FUNCTION tenure.%I SET %s', f, setting);
    END LOOP;
  END LOOP;
END $$;
