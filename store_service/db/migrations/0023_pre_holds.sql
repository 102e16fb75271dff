-- What must be kept.

-- Never deleted. While one holds, the task is not removed (`task_state.held` says so where it still is there), and its tombstone
-- is not purged.
CREATE TABLE tenure.hold (
  tenant_id   text COLLATE "C" NOT NULL,
  number      bigint NOT NULL,
  task_id     uuid   NOT NULL,
  generation  int    NOT NULL,
  reason      text   NOT NULL,
  placed_by   text   NOT NULL,
  placed_at   timestamptz NOT NULL,
  released_by text,
  released_at timestamptz,
  PRIMARY KEY (tenant_id, number),
  UNIQUE (tenant_id, task_id, generation),
  CHECK ((released_by IS NULL) = (released_at IS NULL))
);
CREATE UNIQUE INDEX hold_active ON tenure.hold (tenant_id, task_id) WHERE released_at IS NULL;

-- Holds a task or the tombstone of one: OK with the hold, the one that there was if there was one; or TASK_NOT_FOUND.
CREATE FUNCTION tenure.place_hold(p_tenant text, p_task uuid, p_reason text, p_principal text)
RETURNS TABLE (outcome text, replayed boolean, hold hold) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_hold hold;
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = p_task FOR NO KEY UPDATE;
  v_now := task_now();
  SELECT h.* INTO v_hold FROM hold h WHERE h.tenant_id = p_tenant AND h.task_id = p_task AND h.released_at IS NULL;
  IF FOUND THEN
    RETURN QUERY SELECT 'OK', true, v_hold;
    RETURN;
  END IF;
  UPDATE task_state SET held = true WHERE tenant_id = p_tenant AND task_id = p_task;
  IF NOT FOUND AND NOT EXISTS (SELECT FROM tombstone t WHERE t.tenant_id = p_tenant AND t.task_id = p_task) THEN
    RETURN QUERY SELECT 'TASK_NOT_FOUND', false, NULL::hold;
    RETURN;
  END IF;
  INSERT INTO hold (tenant_id, number, task_id, generation, reason, placed_by, placed_at)
  SELECT p_tenant, coalesce((SELECT max(h.number) FROM hold h WHERE h.tenant_id = p_tenant), 0) + 1, p_task,
         (SELECT count(*) FROM hold h WHERE h.tenant_id = p_tenant AND h.task_id = p_task) + 1, p_reason, p_principal, v_now
  RETURNING * INTO v_hold;
  RETURN QUERY SELECT 'OK', false, v_hold;
END $$;

-- Ends a hold: OK with the hold, also where the same principal ended it before; HOLD_NOT_FOUND or HOLD_RELEASED.
CREATE FUNCTION tenure.release_hold(p_tenant text, p_number bigint, p_principal text)
RETURNS TABLE (outcome text, hold hold) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_hold hold;
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  SELECT h.* INTO v_hold FROM hold h WHERE h.tenant_id = p_tenant AND h.number = p_number;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'HOLD_NOT_FOUND', NULL::hold;
    RETURN;
  END IF;
  PERFORM 1 FROM task_state WHERE tenant_id = p_tenant AND task_id = v_hold.task_id FOR NO KEY UPDATE;
  v_now := task_now();
  IF v_hold.released_at IS NULL THEN
    UPDATE hold SET released_by = p_principal, released_at = v_now WHERE tenant_id = p_tenant AND number = p_number
      RETURNING * INTO v_hold;
    UPDATE task_state SET held = false WHERE tenant_id = p_tenant AND task_id = v_hold.task_id;
  END IF;
  RETURN QUERY SELECT CASE v_hold.released_by WHEN p_principal THEN 'OK' ELSE 'HOLD_RELEASED' END, v_hold;
END $$;

-- What was placed stays as it was; a hold ends once.
CREATE TRIGGER hold_stays BEFORE UPDATE ON tenure.hold FOR EACH ROW
  WHEN (OLD.released_at IS NOT NULL OR (NEW.task_id, NEW.generation, NEW.reason, NEW.placed_by, NEW.placed_at)
        IS DISTINCT FROM (OLD.task_id, OLD.generation, OLD.reason, OLD.placed_by, OLD.placed_at))
  EXECUTE FUNCTION tenure.refuse_change();
