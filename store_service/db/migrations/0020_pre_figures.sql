-- How much work there is, for graphs, alarms and whoever scales workers.

-- Unfinished tasks by where they stand, and since when the oldest one at the head of a lane could be taken. It reads counters,
-- and of at most `p_lanes` lanes the head: those that have waited longest for their turn.
CREATE FUNCTION tenure.queue_figures(p_lanes int)
RETURNS TABLE (ready bigint, leased bigint, other bigint, oldest_ready_ms bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_ready bigint; v_leased bigint; v_outstanding bigint; v_oldest timestamptz;
BEGIN
  SELECT coalesce(sum(l.ready), 0) INTO v_ready FROM lane l;
  SELECT coalesce(sum(t.leased), 0), coalesce(sum(t.outstanding), 0) INTO v_leased, v_outstanding FROM tenant t;
  SELECT min(h.ready_at) INTO v_oldest
  FROM (SELECT l.* FROM lane l WHERE l.open ORDER BY l.turn LIMIT p_lanes) l
  CROSS JOIN LATERAL (
    SELECT s.ready_at FROM task_state s
    WHERE s.tenant_id = l.tenant_id AND s.workflow = l.workflow AND s.version = l.version AND s.ready AND s.ready_at >= l.ready_from
    ORDER BY s.priority DESC, s.ready_at, s.task_id LIMIT 1) h;
  RETURN QUERY SELECT v_ready, v_leased, greatest(v_outstanding - v_ready - v_leased, 0),
                      coalesce((extract(epoch FROM task_now() - v_oldest) * 1000)::bigint, 0);
END $$;

-- What is to be removed of the next `p_tenants` tenants, of each at most `p_tasks`, since when the oldest is; and where to look
-- on, NULL at the end.
CREATE FUNCTION tenure.removal_figures(p_after text, p_tenants int, p_tasks int)
RETURNS TABLE (removable bigint, oldest_ms bigint, next_tenant text)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now();
BEGIN
  RETURN QUERY
  SELECT coalesce(sum(d.n), 0)::bigint, coalesce((extract(epoch FROM v_now - min(d.since)) * 1000)::bigint, 0),
         CASE WHEN count(*) = p_tenants THEN max(l.tenant_id) END
  FROM (SELECT t.tenant_id, t.retention_ms * interval '1 ms' AS kept FROM tenant t WHERE t.tenant_id > p_after
        ORDER BY t.tenant_id LIMIT p_tenants) l
  CROSS JOIN LATERAL (
    SELECT count(*) AS n, min(x.handle_ends_at) + l.kept AS since FROM (
      SELECT s.handle_ends_at FROM task_state s
      WHERE s.tenant_id = l.tenant_id AND NOT s.held AND s.handle_ends_at <= v_now - l.kept
      ORDER BY s.handle_ends_at LIMIT p_tasks) x) d;
END $$;

-- How many purges of all tenants wait for a decision.
CREATE FUNCTION tenure.purges_waiting() RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN (SELECT count(*) FROM purge p WHERE p.state = 'PENDING' AND p.deadline_at > (SELECT task_now()));
END $$;

-- Moves that have not come to their end, of at most `p_limit` tenants, those first that have stood still for longest: since when,
-- and whether a mover is at it. Of one that has left, rows may be left.
CREATE FUNCTION tenure.moves_under_way(p_limit int) RETURNS TABLE (tenant_id text, state text, since_ms bigint, attended boolean)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now();
BEGIN
  RETURN QUERY
  SELECT m.tenant_id, m.state, (extract(epoch FROM v_now - m.changed_at) * 1000)::bigint, EXISTS (
    SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = 2 AND l.objsubid = 2 AND l.granted
      AND l.objid::bigint = hashtext(m.tenant_id)::bigint & 4294967295
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
  FROM move m
  WHERE m.state IN ('DRAINING', 'FROZEN', 'ARRIVING')
    OR (m.state = 'LEFT' AND EXISTS (SELECT FROM tenant t WHERE t.tenant_id = m.tenant_id))
  ORDER BY m.changed_at, m.tenant_id LIMIT p_limit;
END $$;
