-- How a tenant moves from one cell to another. Whoever moves it takes these steps in both, one after the other:
--
--   where it lives               where it goes
--                                ARRIVING (begin_arrival)     it is refused there
--   DRAINING (begin_leaving)                                  nothing new of it is leased
--   FROZEN   (freeze)                                         every call is refused, every lease is over
--                                copied   (stage_rows, store_rows, end_copy)
--   LEFT     (leave)                                          for good
--                                HERE     (arrive)
--   its rows go (forget_rows)
--
-- It becomes HERE there only after it has LEFT here, so it never lives in both. Each step may be repeated, and until it has LEFT
-- all of it may be taken back (abandon_arrival, then stay).

-- What a tenant's rows are in, and the query that reads them. It is found in the catalog, so that no table is left out, but for
-- these: `move` is about the move, `registration` about who asks for work in this cell.
CREATE FUNCTION tenure.moved_tables() RETURNS TABLE (name text, columns text, reading text) LANGUAGE sql STABLE AS $$
  SELECT c.relname::text, x.columns, format('SELECT %s FROM tenure.%I WHERE tenant_id = $1', x.columns, c.relname)
  FROM pg_class c CROSS JOIN LATERAL (
    SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attname) AS columns, bool_or(a.attname = 'tenant_id') AS is_of_tenants
    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) x
  WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind IN ('r', 'p') AND x.is_of_tenants
    AND c.relname NOT IN ('move', 'registration')
  ORDER BY c.relname
$$;

-- Lets a tenant arrive from another database: OK, also where that began before; MOVING with a third one; LIVES_HERE; NOT_EMPTY
-- while rows are left of when it left; OLDER where the tenant has moved on since it was as the other database, of that epoch, has it.
CREATE FUNCTION tenure.begin_arrival(p_tenant text, p_other text, p_epoch bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_move move;
BEGIN
  SELECT m.* INTO v_move FROM move m WHERE m.tenant_id = p_tenant FOR NO KEY UPDATE;
  IF v_move.state = 'ARRIVING' AND v_move.other = p_other THEN RETURN 'OK'; END IF;
  IF v_move.state IN ('ARRIVING', 'DRAINING', 'FROZEN') THEN RETURN 'MOVING'; END IF;
  IF v_move.state = 'LEFT' AND v_move.epoch > p_epoch THEN RETURN 'OLDER'; END IF;
  IF EXISTS (SELECT FROM tenant WHERE tenant_id = p_tenant) THEN
    RETURN CASE v_move.state WHEN 'LEFT' THEN 'NOT_EMPTY' ELSE 'LIVES_HERE' END;
  END IF;
  INSERT INTO move AS m (tenant_id, state, other, epoch, changed_at) VALUES (p_tenant, 'ARRIVING', p_other, 0, task_now())
    ON CONFLICT (tenant_id) DO UPDATE SET state = 'ARRIVING', other = p_other, copied = false, changed_at = task_now();
  RETURN 'OK';
END $$;

-- Begins to let a tenant go: nothing of it is leased any more, what is leased goes on. OK, also where that began before;
-- TENANT_NOT_FOUND; MOVING with another database.
CREATE FUNCTION tenure.begin_leaving(p_tenant text, p_other text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE v_move move;
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 'TENANT_NOT_FOUND'; END IF;
  SELECT m.* INTO v_move FROM move m WHERE m.tenant_id = p_tenant FOR NO KEY UPDATE;
  IF v_move.state IN ('DRAINING', 'FROZEN') AND v_move.other = p_other THEN RETURN 'OK'; END IF;
  IF v_move.state <> 'HERE' THEN RETURN 'MOVING'; END IF;
  INSERT INTO move AS m (tenant_id, state, other, epoch, changed_at) VALUES (p_tenant, 'DRAINING', p_other, 1, task_now())
    ON CONFLICT (tenant_id) DO UPDATE SET state = 'DRAINING', other = p_other, epoch = m.epoch + 1, changed_at = task_now();
  UPDATE lane SET paused = true, open = false WHERE tenant_id = p_tenant;
  RETURN 'OK';
END $$;

-- From here on every call is refused. What is still leased is over: it expires where the tenant goes, which is nobody's crash.
CREATE FUNCTION tenure.freeze(p_tenant text, p_actor text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  UPDATE move SET state = 'FROZEN', changed_at = task_now() WHERE tenant_id = p_tenant AND state = 'DRAINING';
  IF FOUND THEN
    PERFORM end_leases(p_tenant);
    PERFORM add_audit_line(p_tenant, p_actor, 'MoveTenant', 'to: "' || m.other || '"') FROM move m WHERE m.tenant_id = p_tenant;
  END IF;
END $$;

-- Ends the leases of a tenant's tasks and of its cleanup. The caller holds the tenant, and refuses it.
CREATE FUNCTION tenure.end_leases(p_tenant text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz;
BEGIN
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND state = 'LEASED' ORDER BY task_id FOR NO KEY UPDATE;
  v_now := task_now();
  UPDATE task_state s SET expires_at = least(s.expires_at, v_now), check_at = least(s.check_at, v_now), lived = false
    WHERE s.tenant_id = p_tenant AND s.state = 'LEASED';
  UPDATE cleanup_lease SET owner_id = NULL, principal = NULL, expires_at = NULL WHERE tenant_id = p_tenant;
END $$;

-- A table for the rows that come, until the transaction's end, and from there into their own.
CREATE FUNCTION tenure.stage_rows(p_table text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE (SELECT format('CREATE TEMP TABLE staged ON COMMIT DROP AS SELECT %s FROM tenure.%I WITH NO DATA', t.columns, t.name)
           FROM moved_tables() t WHERE t.name = p_table);
END $$;
CREATE FUNCTION tenure.store_rows(p_table text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE (SELECT format('INSERT INTO tenure.%I (%s) SELECT %2$s FROM pg_temp.staged', t.name, t.columns)
           FROM moved_tables() t WHERE t.name = p_table);
  DROP TABLE pg_temp.staged;
END $$;

-- How many rows a tenant has in each table, and their digest, whatever their order.
CREATE FUNCTION tenure.digest_rows(p_tenant text) RETURNS TABLE (name text, amount bigint, digest text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_table record;
BEGIN
  FOR v_table IN SELECT t.name, t.reading FROM moved_tables() t LOOP
    RETURN QUERY EXECUTE format(
      'SELECT %L, count(*), coalesce(sum(hashtextextended(x::text, 0)::numeric), 0)::text FROM (%s) x', v_table.name, v_table.reading
    ) USING p_tenant;
  END LOOP;
END $$;

-- All rows are here: no token that was granted elsewhere ever matches, nor that of a copy of the other database.
CREATE FUNCTION tenure.end_copy(p_tenant text, p_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE v_token bigint := p_epoch * 4294967296;    -- no task is leased so often; and 2^21 moves fit into what every language counts
BEGIN
  UPDATE task_state s SET token = greatest(s.token, v_token), finish_token = NULL, finish_digest = NULL WHERE s.tenant_id = p_tenant;
  UPDATE cleanup_lease c SET token = greatest(c.token, v_token) WHERE c.tenant_id = p_tenant;
  UPDATE budget_export SET held_until = '-infinity' WHERE tenant_id = p_tenant;
  UPDATE tenant SET turn = 0 WHERE tenant_id = p_tenant;
  UPDATE lane SET turn = 0, paused = true, open = false WHERE tenant_id = p_tenant;
  UPDATE move SET copied = true, epoch = p_epoch, changed_at = task_now() WHERE tenant_id = p_tenant AND state = 'ARRIVING';
END $$;

-- The tenant lives in the other database from now on. Also where this one is older than the move, as after a restore.
-- Returns whether it has left, now or before.
CREATE FUNCTION tenure.leave(p_tenant text, p_other text, p_epoch bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  INSERT INTO move AS m (tenant_id, state, other, epoch, changed_at) VALUES (p_tenant, 'LEFT', p_other, p_epoch, task_now())
    ON CONFLICT (tenant_id) DO UPDATE SET state = 'LEFT', other = p_other, epoch = p_epoch, changed_at = task_now()
    WHERE m.epoch < p_epoch OR (m.epoch = p_epoch AND m.state IN ('DRAINING', 'FROZEN', 'LEFT'));
  IF NOT FOUND THEN RETURN false; END IF;
  UPDATE lane SET paused = true, open = false WHERE tenant_id = p_tenant AND NOT paused;    -- where it is older
  PERFORM end_leases(p_tenant);
  RETURN true;
END $$;

-- The tenant lives here from now on.
CREATE FUNCTION tenure.arrive(p_tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  UPDATE move SET state = 'HERE', copied = false, changed_at = task_now() WHERE tenant_id = p_tenant AND state = 'ARRIVING' AND copied;
  IF FOUND THEN
    PERFORM end_move(p_tenant, 'OK');
  END IF;
END $$;

-- It stays after all.
CREATE FUNCTION tenure.stay(p_tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  UPDATE move SET state = 'HERE', changed_at = task_now() WHERE tenant_id = p_tenant AND state IN ('DRAINING', 'FROZEN');
  IF FOUND THEN
    PERFORM end_move(p_tenant, 'CANCELLED');
  END IF;
END $$;

-- Its work may be leased again, as far as no operator paused it; the audit is told how its move ended. The caller holds the tenant.
CREATE FUNCTION tenure.end_move(p_tenant text, p_outcome text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE lane l SET paused = is_paused(p_tenant, l.workflow, l.version) WHERE l.tenant_id = p_tenant;
  UPDATE lane l SET open = l.ready > 0 AND NOT l.paused AND t.leased < t.max_leased
    FROM tenant t WHERE t.tenant_id = p_tenant AND l.tenant_id = p_tenant;
  INSERT INTO audit_outcome (tenant_id, cursor, outcome)
    SELECT p_tenant, a.cursor, p_outcome FROM audit_line a WHERE a.tenant_id = p_tenant AND a.method = 'MoveTenant'
      AND NOT EXISTS (SELECT FROM audit_outcome o WHERE o.tenant_id = p_tenant AND o.cursor = a.cursor);
END $$;

-- What has come so far is not wanted any more; the tenant is refused here as one that left.
CREATE FUNCTION tenure.abandon_arrival(p_tenant text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE move SET state = 'LEFT', epoch = 0, copied = false, changed_at = task_now() WHERE tenant_id = p_tenant AND state = 'ARRIVING';
END $$;

-- Removes rows of a tenant that has left, at most `p_limit` of each table. Returns how many.
CREATE FUNCTION tenure.forget_rows(p_tenant text, p_limit int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE v_table text; v_count bigint; v_all bigint := 0;
BEGIN
  PERFORM 1 FROM move m WHERE m.tenant_id = p_tenant AND m.state = 'LEFT' FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN 0; END IF;
  FOR v_table IN SELECT t.name FROM moved_tables() t ORDER BY t.name = 'tenant' LOOP    -- the tenant itself last
    CONTINUE WHEN v_table = 'tenant' AND v_all > 0;
    EXECUTE format('DELETE FROM tenure.%I WHERE ctid = ANY (ARRAY(SELECT ctid FROM tenure.%1$I WHERE tenant_id = $1 LIMIT $2))', v_table)
      USING p_tenant, p_limit;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    v_all := v_all + v_count;
  END LOOP;
  RETURN v_all;
END $$;
