-- What tasks hold of their tenants' budgets.

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
      v_held.worker_id := p_worker;    -- who asks, taken over or not
      v_held.token := p_token;
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
    WHEN (v_held.task_id IS NULL OR v_held.ended IS NOT NULL) AND NOT EXISTS (
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
  UPDATE task_state s SET recovery_ms = NULL, lived = s.lived OR p_how <> 'FORFEITED'    -- otherwise its worker was heard of
    WHERE s.tenant_id = p_held.tenant_id AND s.task_id = p_held.task_id AND s.recovery_ms IS NOT NULL;
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
