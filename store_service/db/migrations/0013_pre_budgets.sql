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
  window_fact       bigint NOT NULL DEFAULT 0,     -- that of the fact which started the window: from it on, facts are the ledger
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

-- One fact for each change of a ledger and each refusal, in the order in which they became visible. Never changed; forgotten
-- by compact_budget_facts alone.
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
      window_fact = CASE WHEN p_kind IN ('POLICY_CONFIGURED', 'POLICY_REMOVED', 'WINDOW_RESET') THEN b.facts + 1
                         ELSE b.window_fact END,
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
-- anything is reserved. BUDGET_NOT_CONFIGURED where there is none to take away. With OK, the budget as it is then.
CREATE FUNCTION tenure.set_budget_policy(p_tenant text, p_limits bigint[], p_window_ms bigint, p_recovery_ms bigint)
RETURNS TABLE (outcome text, changed budget) LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz; v_zero bigint[] := vector_minus(p_limits, p_limits); v_reservations int; v_configured boolean;
BEGIN
  IF p_limits IS NOT NULL THEN
    INSERT INTO tenant (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  END IF;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT b.reservations, b.limits IS NOT NULL INTO v_reservations, v_configured FROM budget b WHERE b.tenant_id = p_tenant;
  IF v_reservations > 0 OR (p_limits IS NULL AND v_configured IS NOT TRUE) THEN
    RETURN QUERY SELECT CASE WHEN v_reservations > 0 THEN 'BUDGET_RESERVED' ELSE 'BUDGET_NOT_CONFIGURED' END, NULL::budget;
    RETURN;
  END IF;
  UPDATE tenant SET budgeted = true WHERE tenant_id = p_tenant AND NOT budgeted;
  INSERT INTO budget AS b (tenant_id, limits, window_ms, recovery_ms, window_started_at, committed, reserved)
    VALUES (p_tenant, p_limits, p_window_ms, p_recovery_ms, v_now, v_zero, v_zero)
    ON CONFLICT (tenant_id) DO UPDATE SET limits = excluded.limits, window_ms = excluded.window_ms,
      recovery_ms = excluded.recovery_ms, window_started_at = excluded.window_started_at, committed = excluded.committed,
      reserved = excluded.reserved;
  PERFORM change_budget(p_tenant, v_now, CASE WHEN p_limits IS NULL THEN 'POLICY_REMOVED' ELSE 'POLICY_CONFIGURED' END);
  RETURN QUERY SELECT 'OK', b FROM budget b WHERE b.tenant_id = p_tenant;
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
