-- The right to remove what is over of a tenant.

-- One row a tenant, from the first claim on. The token grows by one with each claim; with it, the epoch, the owner and its
-- principal are compared by whatever is done under the lease, while the row is locked.
CREATE TABLE tenure.cleanup_lease (
  tenant_id  text COLLATE "C" PRIMARY KEY,
  token      bigint NOT NULL DEFAULT 0,
  epoch      bigint NOT NULL,
  owner_id   text COLLATE "C",      -- NULL = nobody holds it
  principal  text,
  expires_at timestamptz,
  CHECK ((owner_id IS NULL) = (principal IS NULL) AND (owner_id IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 60);

-- Whether the lease holds at `p_now`, a time that was read when the lease and all else that is needed had been locked.
CREATE FUNCTION tenure.has_cleanup(p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint, p_now timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM cleanup_lease c JOIN epoch e ON e.epoch = c.epoch
    WHERE c.tenant_id = p_tenant AND c.owner_id = p_owner AND c.principal = p_principal AND c.token = p_token
      AND c.epoch = p_epoch AND c.expires_at > p_now);
END $$;

-- Takes the lease, where nobody else holds it: TAKEN, HELD by another, or TENANT_NOT_FOUND.
CREATE FUNCTION tenure.claim_cleanup(p_tenant text, p_owner text, p_principal text, p_lease_ms bigint)
RETURNS TABLE (outcome text, token bigint, epoch bigint, expires_at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_now timestamptz; v_epoch bigint;
BEGIN
  IF NOT EXISTS (SELECT FROM tenant WHERE tenant_id = p_tenant) THEN
    RETURN QUERY SELECT 'TENANT_NOT_FOUND', NULL::bigint, NULL::bigint, NULL::timestamptz;
    RETURN;
  END IF;
  SELECT e.epoch INTO v_epoch FROM epoch e;
  INSERT INTO cleanup_lease (tenant_id, epoch) VALUES (p_tenant, v_epoch) ON CONFLICT DO NOTHING;
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  RETURN QUERY
  UPDATE cleanup_lease c SET token = c.token + 1, epoch = v_epoch, owner_id = p_owner, principal = p_principal,
    expires_at = v_now + p_lease_ms * interval '1 ms'
  WHERE c.tenant_id = p_tenant AND (c.owner_id IS NULL OR c.expires_at <= v_now OR c.epoch <> v_epoch
                                    OR (c.owner_id = p_owner AND c.principal = p_principal))
  RETURNING 'TAKEN', c.token, c.epoch, c.expires_at;
  IF NOT FOUND THEN
    RETURN QUERY SELECT 'HELD', NULL::bigint, NULL::bigint, c.expires_at FROM cleanup_lease c WHERE c.tenant_id = p_tenant;
  END IF;
END $$;

-- Extends the lease, and never shortens it. Returns until when, NULL where it does not hold.
CREATE FUNCTION tenure.heartbeat_cleanup(
  p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint, p_lease_ms bigint
) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz; v_until timestamptz;
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  UPDATE cleanup_lease c SET expires_at = greatest(c.expires_at, v_now + p_lease_ms * interval '1 ms')
    WHERE c.tenant_id = p_tenant AND has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now)
    RETURNING c.expires_at INTO v_until;
  RETURN v_until;
END $$;

-- Gives the lease back. Returns whether it held.
CREATE FUNCTION tenure.release_cleanup(p_tenant text, p_owner text, p_principal text, p_token bigint, p_epoch bigint)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE v_now timestamptz;
BEGIN
  PERFORM 1 FROM cleanup_lease WHERE tenant_id = p_tenant FOR NO KEY UPDATE;
  v_now := task_now();
  UPDATE cleanup_lease c SET owner_id = NULL, principal = NULL, expires_at = NULL
    WHERE c.tenant_id = p_tenant AND has_cleanup(p_tenant, p_owner, p_principal, p_token, p_epoch, v_now);
  RETURN FOUND;
END $$;

-- Of the next tenants, in the order of their ids, since when their oldest task is to be removed; NULL where none is. It
-- looks at one task of each.
CREATE FUNCTION tenure.list_cleanup_tenants(p_tenants text[], p_after text, p_limit int)
RETURNS TABLE (tenant_id text, due_since timestamptz) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE v_now timestamptz := task_now();
BEGIN
  RETURN QUERY
  SELECT l.tenant_id, d.due_since
  FROM (
    SELECT x.* FROM (
      (SELECT t.tenant_id, t.retention_ms FROM tenant t WHERE cardinality(p_tenants) = 0 AND t.tenant_id > p_after
         AND NOT EXISTS (SELECT FROM away a WHERE a.tenant_id = t.tenant_id)
       ORDER BY t.tenant_id LIMIT p_limit)
      UNION ALL
      SELECT t.tenant_id, t.retention_ms FROM (SELECT DISTINCT u FROM unnest(p_tenants) u WHERE u > p_after COLLATE "C") n(id)
      JOIN tenant t ON t.tenant_id = n.id) x
    ORDER BY x.tenant_id LIMIT p_limit) l
  LEFT JOIN LATERAL (
    SELECT s.handle_ends_at + l.retention_ms * interval '1 ms' AS due_since FROM task_state s
    WHERE s.tenant_id = l.tenant_id AND NOT s.held AND s.handle_ends_at <= v_now - l.retention_ms * interval '1 ms'
    ORDER BY s.handle_ends_at LIMIT 1) d ON true
  ORDER BY l.tenant_id;
END $$;
