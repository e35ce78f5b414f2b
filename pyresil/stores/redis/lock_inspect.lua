#!lua flags=no-writes
-- Look at a lock. KEYS: lock. Returns {owner, token, meta, ms left}, or nothing where it is open.
local row = redis.call('HMGET', KEYS[1], 'owner', 'token', 'meta')
if not row[1] then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.error_reply('PYRESIL foreign lock')
  end
  return {}
end
return {row[1], row[2], row[3], redis.call('PTTL', KEYS[1])}
