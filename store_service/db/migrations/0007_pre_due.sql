-- What time does to tasks.

-- Brings along what has fallen due: leases that ran out, rests that are over, deadlines, cancels past their grace, tasks
-- that nobody waits for, reservations that nobody took over. Any claim may call it and a chore does; it is the only way by which time changes a task, and it
-- looks at each row under its lock, never at an earlier snapshot. Returns what it looked at, or a row of no task; in each row,
-- since when the first was due that it saw, or up to when it looked if it saw none. Before that nothing is due, so the next look
-- may begin there, `p_since`; where the clock was set back meanwhile it looks at all.
--
-- A lease that ran out counts as a crash if its worker had been heard of; otherwise the answer to the claim may have been
-- lost. Past `p_max_crashes` leases, or ten, it counts all the same, as some work kills its worker before the first word.
CREATE FUNCTION tenure.promote_due(p_limit int, p_grace_ms bigint, p_max_crashes int, p_since timestamptz DEFAULT NULL)
RETURNS TABLE (tenant_id text, task_id uuid, event text, worker_id text, opened text[], due_from timestamptz)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now(); v_tenants text[]; v_deltas delta[]; v_opened text[];
  v_tenant text[]; v_task uuid[]; v_event text[]; v_worker text[]; v_forfeit text[]; v_due text[];
  v_since timestamptz := CASE WHEN p_since <= v_now THEN p_since ELSE '-infinity' END; v_after timestamptz := v_since;
  v_from timestamptz := v_now; v_first_at timestamptz[];
BEGIN
  LOOP
    SELECT array_agg(t.tenant_id), array_agg(t.first_at), max(t.last_at) INTO v_due, v_first_at, v_after FROM (
      SELECT d.tenant_id, min(d.check_at) AS first_at, max(d.check_at) AS last_at FROM (
        SELECT s.tenant_id, s.check_at FROM task_state s WHERE s.check_at <= v_now AND s.check_at > v_after
        ORDER BY s.check_at LIMIT p_limit) d
      GROUP BY d.tenant_id) t;
    IF v_due IS NULL THEN
      RETURN QUERY SELECT NULL, NULL::uuid, NULL, NULL, '{}'::text[], v_from;
      RETURN;
    END IF;
    v_from := least(v_from, (SELECT min(u.first_at) FROM unnest(v_due, v_first_at) u(t, first_at)
                             WHERE NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = u.t)));
    SELECT array_agg(x.tenant_id) INTO v_tenants
    FROM (SELECT t.tenant_id FROM tenant t
      WHERE t.tenant_id = ANY (v_due) AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = t.tenant_id)
      FOR NO KEY UPDATE SKIP LOCKED) x;
    EXIT WHEN v_tenants IS NOT NULL;    -- otherwise others hold all of these: what fell due after them
  END LOOP;
  v_now := task_now();
  WITH due AS MATERIALIZED (
    SELECT s.* FROM task_state s WHERE s.check_at <= v_now AND s.check_at > v_since AND s.tenant_id = ANY (v_tenants)
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
      failed_for = CASE WHEN d.event <> 'FAILED' THEN NULL WHEN d.deadline_at <= v_now THEN 'EXECUTION_DEADLINE'
                        ELSE 'CRASH_LIMIT' END,
      handle_ends_at = CASE
        WHEN d.event IN ('CANCELLED', 'FAILED') THEN greatest(s.changed_at, v_now) + s.ttl_ms * interval '1 ms' END,
      lines = s.lines + (d.event NOT IN ('READY', 'NOTHING'))::int,
      change = s.change + (d.event NOT IN ('READY', 'NOTHING'))::int,
      changed_at = CASE WHEN d.event IN ('READY', 'NOTHING') THEN s.changed_at ELSE greatest(s.changed_at, v_now) END
    FROM decided d WHERE s.tenant_id = d.tenant_id AND s.task_id = d.task_id
    RETURNING s.tenant_id, s.task_id, s.workflow, s.version, d.event, d.state AS was, d.ready AS was_ready, s.state, s.ready,
              s.ready_at, d.worker_id, d.token, d.forfeit, s.lines - 1 AS line, s.failed_for,
              CASE WHEN d.wait_kind = 'SIGNAL' THEN 'TIMEOUT' ELSE d.wait_kind END AS wake
  ), woken AS (
    UPDATE wait w SET wake = m.wake
    FROM moved m WHERE m.event = 'WOKEN' AND w.tenant_id = m.tenant_id AND w.task_id = m.task_id
  ), unanswered AS (
    UPDATE input_request r SET state = 'OVER'
    FROM moved m WHERE m.event = 'WOKEN' AND r.tenant_id = m.tenant_id AND r.task_id = m.task_id AND r.state = 'OPEN'
  ), kept AS (
    INSERT INTO outcome (tenant_id, task_id, error_code, error_message)
    SELECT m.tenant_id, m.task_id, -32603,
           CASE m.failed_for WHEN 'EXECUTION_DEADLINE' THEN 'The work ran past its execution deadline.'
                ELSE 'The work was given up: its workers were lost too often.' END
    FROM moved m WHERE m.event = 'FAILED'
  ), told AS (
    INSERT INTO history (tenant_id, task_id, line, event, at, worker_id, token, detail)
    SELECT m.tenant_id, m.task_id, m.line, m.event, v_now, m.worker_id, CASE WHEN m.worker_id IS NOT NULL THEN m.token END,
           CASE m.event WHEN 'WOKEN' THEN m.wake WHEN 'FAILED' THEN m.failed_for ELSE '' END
    FROM moved m WHERE m.event NOT IN ('READY', 'NOTHING')
  )
  SELECT array_agg((m.tenant_id, m.workflow, m.version, CASE WHEN m.event IN ('CANCELLED', 'FAILED') THEN -1 ELSE 0 END,
                    (m.state = 'LEASED')::int - (m.was = 'LEASED')::int, m.ready::int - m.was_ready::int,
                    CASE WHEN m.ready AND NOT m.was_ready THEN m.ready_at END)::delta),
         array_agg(m.tenant_id), array_agg(m.task_id), array_agg(m.event), array_agg(m.worker_id),
         CASE WHEN count(m.forfeit) > 0 THEN array_agg(m.forfeit) END
  INTO v_deltas, v_tenant, v_task, v_event, v_worker, v_forfeit FROM moved m;
  IF v_forfeit IS NOT NULL THEN
    PERFORM forfeit_reservation(u.t, u.id, v_now, u.cause) FROM unnest(v_tenant, v_task, v_forfeit) u(t, id, cause)
      WHERE u.cause IS NOT NULL;
  END IF;
  PERFORM close_waits(v_tenant, v_task);
  v_opened := apply_deltas(v_deltas);
  RETURN QUERY SELECT u.t, u.id, u.event, u.w, v_opened, v_from
    FROM (SELECT) one LEFT JOIN unnest(v_tenant, v_task, v_event, v_worker) u(t, id, event, w) ON true;
END $$;

-- Analyzes tables of whose rows the planner knows nothing, or a tenth. It goes by how many rows a page had when it looked last;
-- where those were few, or none, so they stay, and a table that seems to have one is read whole sooner than by its key. Only the
-- owner may analyze. A table that is locked is left out, and so is a large one that was analyzed just now: its rows may lie where
-- no sample finds them.
CREATE FUNCTION tenure.analyze_outgrown() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE t regclass;
BEGIN
  FOR t IN
    SELECT c.oid FROM pg_class c CROSS JOIN LATERAL (
      SELECT pg_stat_get_live_tuples(c.oid) AS live,
             greatest(pg_stat_get_last_analyze_time(c.oid), pg_stat_get_last_autoanalyze_time(c.oid)) AS known_at) s
    WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r' AND s.live >= 100
      AND (s.known_at IS NULL OR s.live >= 10 * c.reltuples
                                 AND (c.relpages < 30000 OR s.known_at < clock_timestamp() - interval '10 s')) LOOP
    EXECUTE format('ANALYZE (SKIP_LOCKED) %s', t);
  END LOOP;
END $$;
