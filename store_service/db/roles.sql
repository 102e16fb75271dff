-- Who may touch what, applied after every migration, so that no table and no function that was added or replaced is left out.

-- name: create_roles
-- Roles belong to the whole server, and several databases may be migrated at once.
DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['tenure_app', 'tenure_scheduler', 'tenure_governance', 'tenure_metrics', 'tenure_mover'] LOOP
    BEGIN
      IF to_regrole(name) IS NULL THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN NOINHERIT', name);
      END IF;
    EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;
    END;
    -- From version 16 on, who makes a role is a member that may give it away, and may not act as it.
    IF NOT pg_has_role(current_user, name, CASE WHEN current_setting('server_version_num')::int < 160000
                                                THEN 'MEMBER' ELSE 'SET' END) THEN
      EXECUTE format('GRANT %I TO CURRENT_USER', name);
    END IF;
  END LOOP;
END $$

-- name: grant_rights
-- `tenure_app` is the store: what is written once is never changed by it, what is kept as proof is never deleted.
-- `tenure_scheduler` is what looks for work among all tenants, `tenure_governance` what takes away what is over, both as the
-- owners of functions. `tenure_metrics` counts: it sees no content. `tenure_mover` is who moves a tenant to another cell.
DO $$
BEGIN
  REVOKE ALL ON SCHEMA tenure FROM PUBLIC;
  REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC, tenure_app, tenure_scheduler, tenure_governance, tenure_metrics,
    tenure_mover;
  REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC;
  GRANT USAGE ON SCHEMA tenure TO tenure_app, tenure_scheduler, tenure_governance, tenure_metrics, tenure_mover;
  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO tenure_app, tenure_scheduler, tenure_governance, tenure_mover;
  GRANT EXECUTE ON FUNCTION tenure.task_now() TO tenure_metrics;
  GRANT SELECT ON public.tenure_migration TO tenure_app;
  GRANT USAGE ON SEQUENCE tenure.turn TO tenure_app, tenure_scheduler, tenure_governance;
  GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO tenure_app, tenure_scheduler, tenure_governance,
    tenure_mover;
  REVOKE DELETE ON tenure.task, tenure.task_state, tenure.history, tenure.checkpoint, tenure.outcome, tenure.tombstone,
    tenure.budget_fact, tenure.redrive, tenure.hold, tenure.tombstone_export, tenure.purge, tenure.purge_item,
    tenure.purge_evidence, tenure.epoch, tenure.tenant, tenure.audit_head, tenure.audit_line, tenure.audit_outcome
    FROM tenure_app, tenure_scheduler;
  REVOKE UPDATE ON tenure.history, tenure.checkpoint, tenure.outcome, tenure.tombstone, tenure.budget_fact, tenure.redrive,
    tenure.tombstone_export, tenure.purge_item, tenure.purge_evidence, tenure.epoch, tenure.audit_line, tenure.audit_outcome
    FROM tenure_app, tenure_scheduler, tenure_governance;
  REVOKE INSERT ON tenure.tombstone, tenure.redrive, tenure.purge, tenure.purge_item, tenure.purge_evidence, tenure.epoch
    FROM tenure_app, tenure_scheduler;
  REVOKE UPDATE ON tenure.purge FROM tenure_app, tenure_scheduler;
  REVOKE DELETE ON tenure.hold, tenure.tombstone_export, tenure.purge, tenure.purge_evidence, tenure.audit_line,
    tenure.audit_outcome FROM tenure_governance;
  REVOKE INSERT, UPDATE, DELETE ON tenure.move FROM tenure_app, tenure_scheduler, tenure_governance;
  GRANT SELECT ON tenure.tenant, tenure.lane, tenure.task_state, tenure.budget, tenure.reservation, tenure.audit,
    tenure.budget_audit, tenure.move TO tenure_metrics;
END $$

-- name: guard_rows
-- Rows are there for whoever named their tenant.
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT a.attrelid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
           WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r' AND a.attname = 'tenant_id'
             AND NOT c.relforcerowsecurity LOOP
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', t);
    EXECUTE format('CREATE POLICY named ON %s TO tenure_app, tenure_governance USING ((SELECT tenure.allowed()) ? tenant_id)', t);
    EXECUTE format('CREATE POLICY all_of_them ON %s TO tenure_scheduler, tenure_metrics, tenure_mover USING (true)', t);
  END LOOP;
END $$

-- name: own_functions
-- The functions that need more than the store has; and, of those, what each finish calls, too: a session plans anew what another
-- role ran last. To own a function, a role must be able to create in its schema.
DO $$
DECLARE f regprocedure; owner text;
BEGIN
  GRANT CREATE ON SCHEMA tenure TO tenure_scheduler, tenure_governance;
  FOR f, owner IN
    SELECT p.oid, o.owner FROM pg_proc p JOIN (VALUES
      ('apply_deltas', 'tenure_scheduler'), ('close_waits', 'tenure_scheduler'), ('close_signals', 'tenure_scheduler'), ('close_questions', 'tenure_scheduler'),
      ('claim_tasks', 'tenure_scheduler'), ('list_cleanup_tenants', 'tenure_scheduler'), ('list_unexported_tenants', 'tenure_scheduler'), ('queue_figures', 'tenure_scheduler'), ('removal_figures', 'tenure_scheduler'), ('purges_waiting', 'tenure_scheduler'),
      ('moves_under_way', 'tenure_scheduler'),
      ('promote_due', 'tenure_scheduler'), ('meter_budget_facts', 'tenure_scheduler'), ('forget_registrations', 'tenure_scheduler'),
      ('remove_tasks', 'tenure_governance'), ('prepare_purge', 'tenure_governance'), ('claim_purge', 'tenure_governance'), ('decide_purge', 'tenure_governance'),
      ('execute_purge', 'tenure_governance'), ('redrive_tasks', 'tenure_governance'), ('compact_budget_facts', 'tenure_governance')
    ) o(name, owner) ON o.name = p.proname WHERE p.pronamespace = 'tenure'::regnamespace LOOP
    EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER', f);
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', f, owner);
  END LOOP;
  REVOKE CREATE ON SCHEMA tenure FROM tenure_scheduler, tenure_governance;
END $$

-- name: is_member
-- Whether who asks may act as the store.
SELECT coalesce(pg_has_role(current_user, to_regrole('tenure_app'), CASE WHEN current_setting('server_version_num')::int < 160000
                                                                         THEN 'MEMBER' ELSE 'SET' END), false) AS member

-- name: act_as_store
SET ROLE tenure_app
