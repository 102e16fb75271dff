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
         coalesce(bool_and(l.open = (l.ready > 0 AND t.leased < t.max_leased AND NOT l.paused)
                           AND (l.ready = 0 OR l.turn = t.turn)
                           AND NOT EXISTS (SELECT FROM tenure.task_state s WHERE s.tenant_id = l.tenant_id AND s.workflow = l.workflow
                                             AND s.version = l.version AND s.ready AND s.ready_at < l.ready_from)
                           AND l.paused = (EXISTS (SELECT FROM tenure.pause p WHERE p.tenant_id = l.tenant_id
                                                     AND p.workflow IN ('', l.workflow) AND p.version IN (0, l.version))
                                             OR EXISTS (SELECT FROM tenure.move m WHERE m.tenant_id = l.tenant_id
                                                          AND m.state <> 'HERE'))), true)
           AS lane_right
  FROM tenure.lane l WHERE l.tenant_id = t.tenant_id
) a
WHERE (t.outstanding, t.leased, c.ready, c.forgotten, c.stuck, a.lane_right)
  IS DISTINCT FROM (c.live, c.held, a.lane_ready, 0::bigint, 0::bigint, true);
