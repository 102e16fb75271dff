-- Forks: tasks that start where others were.

-- Creates a task that starts with the first checkpoints of another: CREATED, REPLAYED, REQUEST_ID_CONFLICT, NOT_FOUND,
-- CHECKPOINT_NOT_FOUND, OUTSTANDING_LIMIT or CREATE_RATE.
CREATE FUNCTION tenure.fork_task(
  p_tenant text, p_source uuid, p_checkpoints int, p_issuer text, p_subject text, p_task uuid, p_request text, p_digest bytea
) RETURNS TABLE (outcome text, task_id uuid, opened text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_known uuid; v_same boolean; v_owned boolean; v_has int; v_room boolean; v_too_many boolean; v_deltas delta[];
BEGIN
  SELECT t.outstanding < t.max_outstanding INTO v_room FROM tenant t WHERE t.tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_source FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT x.task_id, x.request_digest = p_digest, p_issuer IS NULL OR (x.issuer = p_issuer AND x.subject = p_subject)
  INTO v_known, v_same, v_owned FROM task x WHERE x.tenant_id = p_tenant AND x.request_id = p_request;
  IF v_known IS NOT NULL THEN
    RETURN QUERY SELECT CASE WHEN NOT v_same THEN 'REQUEST_ID_CONFLICT' WHEN v_owned THEN 'REPLAYED' ELSE 'NOT_FOUND' END,
                        v_known, '{}'::text[];
    RETURN;
  END IF;
  SELECT s.checkpoints INTO v_has FROM task_state s JOIN task t ON t.tenant_id = s.tenant_id AND t.task_id = s.task_id
    WHERE s.tenant_id = p_tenant AND s.task_id = p_source
      AND (p_issuer IS NULL OR (t.issuer = p_issuer AND t.subject = p_subject));
  IF v_has IS NULL OR v_has < p_checkpoints OR NOT v_room THEN
    RETURN QUERY SELECT CASE WHEN v_has IS NULL THEN 'NOT_FOUND' WHEN v_has < p_checkpoints THEN 'CHECKPOINT_NOT_FOUND'
                             ELSE 'OUTSTANDING_LIMIT' END, NULL::uuid, '{}'::text[];
    RETURN;
  END IF;
  UPDATE tenant l SET creates_at = v_now, creates_left = c.room - (c.room >= 1)::int
  FROM (SELECT least(t.max_creates_per_second, t.creates_left + t.max_creates_per_second * extract(epoch FROM
                 greatest(interval '0', least(v_now - t.creates_at, interval '1 s')))) AS room
        FROM tenant t WHERE t.tenant_id = p_tenant) c
  WHERE l.tenant_id = p_tenant AND l.max_creates_per_second > 0
  RETURNING c.room < 1 INTO v_too_many;
  IF v_too_many THEN
    RETURN QUERY SELECT 'CREATE_RATE', NULL::uuid, '{}'::text[];
    RETURN;
  END IF;
  INSERT INTO task (tenant_id, task_id, request_id, request_digest, tool, workflow, version, issuer, subject, client_capabilities,
                    output_schema, ttl_ms, poll_interval_ms, execution_deadline_ms, trace_parent, trace_state, baggage, priority,
                    media_type, input, created_at, forked_from, forked_checkpoints)
  SELECT t.tenant_id, p_task, p_request, p_digest, t.tool, t.workflow, t.version, t.issuer, t.subject, t.client_capabilities,
         t.output_schema, t.ttl_ms, t.poll_interval_ms, t.execution_deadline_ms, t.trace_parent, t.trace_state, t.baggage,
         t.priority, t.media_type, t.input, v_now, p_source, p_checkpoints
  FROM task t WHERE t.tenant_id = p_tenant AND t.task_id = p_source;
  INSERT INTO input_request (tenant_id, task_id, number, key, name, token, method, params, asked_at, state)
  SELECT r.tenant_id, p_task, r.number, r.key, r.name, 0, r.method, r.params, v_now, r.state
  FROM input_request r WHERE r.tenant_id = p_tenant AND r.task_id = p_source AND r.token = 0;
  INSERT INTO checkpoint (tenant_id, task_id, revision, step, media_type, data, token, created_at)
  SELECT c.tenant_id, p_task, c.revision, c.step, c.media_type, c.data, 0, v_now
  FROM checkpoint c WHERE c.tenant_id = p_tenant AND c.task_id = p_source AND c.revision < p_checkpoints;
  INSERT INTO task_state (tenant_id, task_id, workflow, version, priority, created_at, state, ready, ready_at, check_at,
                          deadline_at, ttl_ms, checkpoints, checkpoint_bytes, lines, changed_at)
  SELECT t.tenant_id, t.task_id, t.workflow, t.version, t.priority, v_now, 'QUEUED', true, v_now, d.at, d.at, t.ttl_ms,
         p_checkpoints,
         (SELECT coalesce(sum(octet_length(c.data)), 0) FROM checkpoint c WHERE c.tenant_id = p_tenant AND c.task_id = p_task),
         1, v_now
  FROM task t CROSS JOIN LATERAL (
    SELECT CASE WHEN t.execution_deadline_ms > 0 THEN v_now + t.execution_deadline_ms * interval '1 ms' END) d(at)
  WHERE t.tenant_id = p_tenant AND t.task_id = p_task;
  INSERT INTO history (tenant_id, task_id, line, event, at, detail)
    VALUES (p_tenant, p_task, 0, 'CREATED', v_now, 'forked from ' || p_source);
  SELECT ARRAY[(t.tenant_id, t.workflow, t.version, 1, 0, 1, v_now)::delta] INTO v_deltas FROM task t
    WHERE t.tenant_id = p_tenant AND t.task_id = p_task;
  RETURN QUERY SELECT 'CREATED', p_task, apply_deltas(v_deltas);
END $$;
