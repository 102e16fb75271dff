-- What operators hold back: nothing of it is leased, and what runs may end.

-- A pause of a tenant's work: of all of it, of a workflow, or of one version. Several may lie over each other; each lasts
-- until it is taken away itself. Written under the tenant's lock, and with it `lane.paused`.
CREATE TABLE tenure.pause (
  tenant_id text COLLATE "C" NOT NULL,
  workflow  text COLLATE "C" NOT NULL,     -- empty = every workflow
  version   int  NOT NULL,                 -- 0 = every version
  actor     text NOT NULL,
  reason    text NOT NULL,
  paused_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, workflow, version),
  CHECK (workflow <> '' OR version = 0)
);

-- Also a tenant that moves: nothing of it is leased until it is where it goes.
CREATE FUNCTION tenure.is_paused(p_tenant text, p_workflow text, p_version int) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT FROM pause p WHERE p.tenant_id = p_tenant AND p.workflow IN ('', p_workflow)
                   AND p.version IN (0, p_version))
    OR EXISTS (SELECT FROM move m WHERE m.tenant_id = p_tenant AND m.state <> 'HERE');
END $$;

-- Holds back work of a tenant: OK, or PAUSE_LIMIT. One that is held back already stays as it is.
CREATE FUNCTION tenure.pause_work(
  p_tenant text, p_workflow text, p_version int, p_actor text, p_reason text, p_most int
) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO tenant (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  IF EXISTS (SELECT FROM pause WHERE tenant_id = p_tenant AND workflow = p_workflow AND version = p_version) THEN
    RETURN 'OK';
  END IF;
  IF p_most <= (SELECT count(*) FROM pause WHERE tenant_id = p_tenant) THEN
    RETURN 'PAUSE_LIMIT';
  END IF;
  INSERT INTO pause (tenant_id, workflow, version, actor, reason, paused_at)
    VALUES (p_tenant, p_workflow, p_version, p_actor, p_reason, task_now());
  UPDATE lane SET paused = true, open = false
    WHERE tenant_id = p_tenant AND p_workflow IN ('', workflow) AND p_version IN (0, version) AND NOT paused;
  RETURN 'OK';
END $$;

-- Takes a pause away, where there is one. Returns the lanes that opened; NULL where there is no such tenant.
CREATE FUNCTION tenure.resume_work(p_tenant text, p_workflow text, p_version int) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE v_opened text[];
BEGIN
  PERFORM 1 FROM tenant WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  IF NOT FOUND THEN RETURN NULL; END IF;
  DELETE FROM pause WHERE tenant_id = p_tenant AND workflow = p_workflow AND version = p_version;
  WITH laned AS (
    UPDATE lane l SET paused = false, open = l.ready > 0 AND t.leased < t.max_leased
    FROM tenant t WHERE t.tenant_id = p_tenant AND l.tenant_id = p_tenant AND l.paused
      AND NOT is_paused(p_tenant, l.workflow, l.version)
    RETURNING l.workflow, l.version, l.open
  )
  SELECT array_agg(x.workflow || '/' || x.version) INTO v_opened FROM laned x WHERE x.open;
  RETURN coalesce(v_opened, '{}');
END $$;
