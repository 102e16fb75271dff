-- What each transaction begins with where connections are shared with others.

-- name: set_locally
-- $1 names, $2 values
-- Until the end of the transaction; so the session, which the next transaction of somebody else gets, stays as it was.
SELECT set_config(name, value, true) FROM unnest($1::text[], $2::text[]) x(name, value)
