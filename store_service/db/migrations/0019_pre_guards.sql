-- A second line behind the queries, which name the tenant first: see `roles.sql`, which is applied after every migration.

-- Says which tenants a statement is for, and hands them on, so that it stands where the tenants are named:
-- `tenure.cancel_tasks(tenure.allow_each($1), ...)`, `WHERE tenant_id = (SELECT tenure.allow($1))`. It holds until the end of
-- the transaction, which is the statement. A tenant that moves, or has moved to another cell, is refused here, and so everywhere.
CREATE FUNCTION tenure.allow(p_tenant text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('tenure.tenants', jsonb_build_object(p_tenant, true)::text, true);
  IF EXISTS (SELECT FROM away a WHERE a.tenant_id = p_tenant) THEN
    PERFORM refuse_moved(ARRAY[p_tenant]);
  END IF;
  RETURN p_tenant;
END $$;

-- A statement of several tenants waits for a lock for a moment only: it may hold what others of them need, and is parted then.
CREATE FUNCTION tenure.allow_each(p_tenants text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  IF NOT p_tenants[1] = ALL (p_tenants) THEN
    PERFORM set_config('lock_timeout', '100ms', true);
  END IF;
  PERFORM set_config('tenure.tenants', jsonb_object(p_tenants, p_tenants)::text, true);
  IF EXISTS (SELECT FROM away a WHERE a.tenant_id = ANY (p_tenants)) THEN
    PERFORM refuse_moved(p_tenants);
  END IF;
  RETURN p_tenants;
END $$;

-- Raises TN001, with a JSON list of those of the tenants that this cell does nothing for.
CREATE FUNCTION tenure.refuse_moved(p_tenants text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'tenants move, or have moved to another cell' USING ERRCODE = 'TN001',
    DETAIL = (SELECT json_agg(a.tenant_id)::text FROM away a WHERE a.tenant_id = ANY (p_tenants));
END $$;

CREATE FUNCTION tenure.allowed() RETURNS jsonb LANGUAGE sql STABLE AS
  $$SELECT coalesce(nullif(current_setting('tenure.tenants', true), ''), '{}')::jsonb$$;

-- What is over does not change, whoever tries: only an operator's redrive takes a failed task back.
CREATE TRIGGER history_stays BEFORE UPDATE ON tenure.history
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER checkpoint_stays BEFORE UPDATE ON tenure.checkpoint
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER outcome_stays BEFORE UPDATE ON tenure.outcome
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER tombstone_stays BEFORE UPDATE ON tenure.tombstone
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER ended_stays BEFORE UPDATE ON tenure.task_state FOR EACH ROW
  WHEN (OLD.ended_at IS NOT NULL AND (NEW.state, NEW.ended_at) IS DISTINCT FROM (OLD.state, OLD.ended_at)
        AND current_user <> 'tenure_governance')
  EXECUTE FUNCTION tenure.refuse_change();

-- Views show what their reader may see.
ALTER VIEW tenure.away SET (security_invoker = true);
ALTER VIEW tenure.wake SET (security_invoker = true);
ALTER VIEW tenure.audit SET (security_invoker = true);
ALTER VIEW tenure.budget_audit SET (security_invoker = true);
