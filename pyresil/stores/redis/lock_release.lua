#!lua flags=allow-oom
-- Release a lock. KEYS: lock, waiters, bell. ARGV: owner ("" for whoever), minimum hold in ms.
-- Returns 1, or 0 where it is not the owner's. Where somebody waits, the bell is rung: one element wakes one waiter.
local row = redis.call('HMGET', KEYS[1], 'owner', 'acquired')
if not row[1] then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.error_reply('PYRESIL foreign lock')
  end
  return 0
end
if ARGV[1] ~= '' and row[1] ~= ARGV[1] then
  return 0
end
local hold = tonumber(ARGV[2])
if hold > 0 then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local acquired = row[2] and tonumber(row[2])
  if not acquired then
    return redis.error_reply('PYRESIL foreign lock')
  end
  local left = math.ceil((acquired + hold * 1000 - now) / 1000)
  if left > 0 then
    redis.call('HSET', KEYS[1], 'owner', '')
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', left))
    return 1
  end
end
redis.call('DEL', KEYS[1])
if redis.call('EXISTS', KEYS[2]) == 1 then
  redis.call('DEL', KEYS[3])
  redis.call('LPUSH', KEYS[3], '1')
  redis.call('PEXPIRE', KEYS[3], 1000)
end
return 1
