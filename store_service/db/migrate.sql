-- The migrations that a database has, and what `serve` asks of it.

-- name: create_migrations
CREATE TABLE IF NOT EXISTS public.tenure_migration (
  number int PRIMARY KEY, phase text NOT NULL, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT clock_timestamp())

-- name: lock_migrations
-- One migrating process at a time, until the end of the transaction.
SELECT pg_advisory_xact_lock(7305809124460245333)

-- name: has_migrations
SELECT to_regclass('public.tenure_migration') IS NOT NULL AS has

-- name: enter_schema
-- Migrations name the schema's things without their schema.
SET LOCAL search_path = tenure, pg_temp

-- name: pin_functions
-- In functions, names resolve in the schema alone, and plans are pinned where the query lives: by key, by nested loop, one
-- plan for all parameters.
DO $$
DECLARE f regprocedure; setting text;
BEGIN
  FOR f IN SELECT p.oid FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
           WHERE p.pronamespace = 'tenure'::regnamespace AND l.lanname = 'plpgsql' AND p.prorettype <> 'trigger'::regtype LOOP
    FOREACH setting IN ARRAY ARRAY['search_path = tenure, pg_temp', 'enable_seqscan = off', 'enable_hashjoin = off',
                                   'enable_mergejoin = off', 'plan_cache_mode = force_generic_plan'] LOOP
      EXECUTE format('ALTER FUNCTION %s SET %s', f, setting);
    END LOOP;
  END LOOP;
END $$

-- name: analyze_seldom
-- Tables are analyzed each time they have doubled: plans hang little on what they hold, and each ANALYZE has every session make
-- its plans anew. Those whose rows change all the time, and so leave room in their pages, not before 100,000 changes.
DO $$
DECLARE t record;
BEGIN
  FOR t IN SELECT c.oid::regclass AS name, array_to_string(c.reloptions, ' ') LIKE '%fillfactor=%' AS is_busy
           FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r'
             AND NOT coalesce('autovacuum_analyze_scale_factor=1' = ANY (c.reloptions), false) LOOP
    EXECUTE format('ALTER TABLE %s SET (autovacuum_analyze_scale_factor = 1)', t.name);
    IF t.is_busy THEN
      EXECUTE format('ALTER TABLE %s SET (autovacuum_analyze_threshold = 100000)', t.name);
    END IF;
  END LOOP;
END $$

-- name: expect_many
-- A tenant has many rows, however few each had when the tables were analyzed: where it was one, every index that begins with the
-- tenant seems as good as the key, and is read from end to end for each task of a tenant that has many by then. Where the key's
-- is the only such index, what was found may be believed.
DO $$
DECLARE t regclass;
BEGIN
  FOR t IN SELECT a.attrelid FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
           WHERE c.relnamespace = 'tenure'::regnamespace AND c.relkind = 'r' AND a.attname = 'tenant_id' AND a.attoptions IS NULL
             AND (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indkey[0] = a.attnum) > 1 LOOP
    EXECUTE format('ALTER TABLE %s ALTER COLUMN tenant_id SET (n_distinct = -0.001)', t);
  END LOOP;
END $$

-- name: list_migrations
SELECT number, phase FROM public.tenure_migration ORDER BY number

-- name: add_migration
-- $1 number, $2 phase, $3 name
INSERT INTO public.tenure_migration (number, phase, name) VALUES ($1, $2, $3)

-- name: clock_source
SELECT p.prosrc AS source FROM pg_proc p WHERE p.oid = 'tenure.task_now()'::regprocedure

-- name: bump_epoch
UPDATE tenure.epoch SET epoch = epoch + 1, timeline = tenure.timeline() RETURNING epoch

-- name: keep_epoch
UPDATE tenure.epoch SET timeline = tenure.timeline() RETURNING epoch

-- name: has_moved
SELECT e.timeline <> tenure.timeline() AS moved FROM tenure.epoch e
