#!lua flags=allow-oom
-- Announce a waiter. KEYS: lock, waiters. ARGV: how long it waits, in ms.
-- Returns the ms until the lock opens by itself, or 0 where it is open.
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return 0
end
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[1])
end
return math.max(left, 1)
