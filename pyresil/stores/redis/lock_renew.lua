#!lua flags=allow-oom
-- Renew a lock. KEYS: lock, counter. ARGV: owner, ttl in ms, keep in ms. Returns 1, or 0 where it is not the owner's.
local owner = redis.call('HGET', KEYS[1], 'owner')
if owner == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  return 1
end
if not owner and redis.call('EXISTS', KEYS[1]) == 1 then
  return redis.error_reply('PYRESIL foreign lock')
end
return 0
