-- What operators did.

-- How many lines a tenant has. Its row gives the cursors, so that their order is the order in which lines become visible.
CREATE TABLE tenure.audit_head (
  tenant_id text COLLATE "C" PRIMARY KEY,
  lines     bigint NOT NULL
);

-- Append only. One line for each call of an operator that changes something, written before it does.
CREATE TABLE tenure.audit_line (
  tenant_id text COLLATE "C" NOT NULL,
  cursor    bigint NOT NULL,
  caller    text NOT NULL,
  method    text NOT NULL,
  request   text NOT NULL,
  at        timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, cursor)
);

-- Append only. How the call ended.
CREATE TABLE tenure.audit_outcome (
  tenant_id text COLLATE "C" NOT NULL,
  cursor    bigint NOT NULL,
  outcome   text NOT NULL,
  PRIMARY KEY (tenant_id, cursor)
);

CREATE TRIGGER audit_line_stays BEFORE UPDATE ON tenure.audit_line
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();
CREATE TRIGGER audit_outcome_stays BEFORE UPDATE ON tenure.audit_outcome
  FOR EACH STATEMENT EXECUTE FUNCTION tenure.refuse_change();

-- Writes a line; returns its cursor.
CREATE FUNCTION tenure.add_audit_line(p_tenant text, p_caller text, p_method text, p_request text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_cursor bigint;
BEGIN
  INSERT INTO audit_head AS h (tenant_id, lines) VALUES (p_tenant, 1)
    ON CONFLICT (tenant_id) DO UPDATE SET lines = h.lines + 1 RETURNING h.lines INTO v_cursor;
  INSERT INTO audit_line (tenant_id, cursor, caller, method, request, at)
    VALUES (p_tenant, v_cursor, p_caller, p_method, p_request, task_now());
  RETURN v_cursor;
END $$;
