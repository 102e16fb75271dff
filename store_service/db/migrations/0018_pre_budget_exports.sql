-- What has read the facts of budgets, and so which of them may be forgotten.

CREATE TABLE tenure.budget_export (
  tenant_id  text COLLATE "C" PRIMARY KEY,
  exported   bigint NOT NULL DEFAULT 0,            -- an operator keeps the facts up to here elsewhere
  metered    bigint NOT NULL DEFAULT 0,            -- the figures of some store count the facts up to here
  compacted  bigint NOT NULL DEFAULT 0,            -- the facts up to here are gone
  held_until timestamptz NOT NULL DEFAULT '-infinity',   -- a store counts what comes after `metered`
  CHECK (compacted <= least(exported, metered))
) WITH (fillfactor = 60);

-- Notes that facts are kept elsewhere; it never goes back. Returns up to which; NULL where there are not so many.
CREATE FUNCTION tenure.confirm_budget_export(p_tenant text, p_through bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_exported bigint;
BEGIN
  IF p_through > coalesce((SELECT b.facts FROM budget b WHERE b.tenant_id = p_tenant), 0) THEN RETURN NULL; END IF;
  IF p_through > 0 THEN
    INSERT INTO budget_export AS e (tenant_id, exported) VALUES (p_tenant, p_through)
      ON CONFLICT (tenant_id) DO UPDATE SET exported = greatest(e.exported, excluded.exported);
  END IF;
  SELECT e.exported INTO v_exported FROM budget_export e WHERE e.tenant_id = p_tenant;
  RETURN coalesce(v_exported, 0);
END $$;

-- Forgets a tenant's oldest facts that are kept elsewhere, are counted, are old enough, and belong to a window that is over.
-- Cursors only grow, so a look at them that is late forgets less, never more. Returns how many, and up to which all are gone.
CREATE FUNCTION tenure.compact_budget_facts(p_tenant text, p_older_ms bigint, p_limit int)
RETURNS TABLE (compacted int, through bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_export budget_export; v_window bigint; v_count int; v_through bigint;
BEGIN
  SELECT e.* INTO v_export FROM budget_export e WHERE e.tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT b.window_fact INTO v_window FROM budget b WHERE b.tenant_id = p_tenant;
  SELECT count(*), max(x.cursor) INTO v_count, v_through FROM (
    SELECT f.cursor, bool_and(f.at <= v_now - p_older_ms * interval '1 ms') OVER (ORDER BY f.cursor) AS old
    FROM budget_fact f WHERE f.tenant_id = p_tenant AND f.cursor > v_export.compacted
      AND f.cursor <= least(v_export.exported, v_export.metered, v_window - 1)
    ORDER BY f.cursor LIMIT p_limit) x WHERE x.old;
  IF v_count > 0 THEN
    DELETE FROM budget_fact f WHERE f.tenant_id = p_tenant AND f.cursor <= v_through;
    UPDATE budget_export e SET compacted = v_through WHERE e.tenant_id = p_tenant;
  END IF;
  RETURN QUERY SELECT v_count, coalesce(v_through, v_export.compacted, 0);
END $$;

-- Notes which facts were counted, and hands out the next ones to count, of at most `p_tenants` tenants, each held for
-- `p_hold_ms`. What is handed out and not noted in time is handed out again.
CREATE FUNCTION tenure.meter_budget_facts(
  p_tenant text[], p_through bigint[], p_tenants int, p_facts int, p_hold_ms bigint
) RETURNS TABLE (tenant_id text, cursor bigint, kind text, cause text, amount bigint[], charged bigint[], released bigint[],
                 reservation_age_ms bigint, limits bigint[], committed bigint[], reserved bigint[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now();
BEGIN
  UPDATE budget_export e SET metered = u.through, held_until = '-infinity' FROM unnest(p_tenant, p_through) u(t, through)
    WHERE e.tenant_id = u.t AND e.metered < u.through AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = e.tenant_id);
  INSERT INTO budget_export (tenant_id) SELECT b.tenant_id FROM budget b
    WHERE NOT EXISTS (SELECT FROM budget_export e WHERE e.tenant_id = b.tenant_id)
      AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = b.tenant_id) ORDER BY b.tenant_id ON CONFLICT DO NOTHING;
  RETURN QUERY
  WITH due AS (
    SELECT e.tenant_id FROM budget_export e JOIN budget b ON b.tenant_id = e.tenant_id
    WHERE e.metered < b.facts AND e.held_until <= v_now AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = e.tenant_id)
    ORDER BY e.tenant_id LIMIT p_tenants FOR NO KEY UPDATE OF e SKIP LOCKED
  ), held AS (
    UPDATE budget_export e SET held_until = v_now + p_hold_ms * interval '1 ms'
    FROM due d WHERE e.tenant_id = d.tenant_id RETURNING e.tenant_id, e.metered
  )
  SELECT h.tenant_id, f.cursor, f.kind, f.cause, f.amount, f.charged, f.released, f.reservation_age_ms, f.limits,
         f.committed, f.reserved
  FROM held h CROSS JOIN LATERAL (
    SELECT x.* FROM budget_fact x WHERE x.tenant_id = h.tenant_id AND x.cursor > h.metered ORDER BY x.cursor LIMIT p_facts) f
  ORDER BY h.tenant_id, f.cursor;
END $$;
