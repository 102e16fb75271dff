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
    WHERE s.tenant_id = l.tenant_id AND s.workflow = l.workflow AND s.version = l.version AND s.ready
    ORDER BY s.priority DESC, s.ready_at, s.task_id LIMIT 1) h;
  RETURN QUERY SELECT v_ready, v_leased, greatest(v_outstanding - v_ready - v_leased, 0),
                      coalesce((extract(epoch FROM task_now() - v_oldest) * 1000)::bigint, 0);
END $$;
