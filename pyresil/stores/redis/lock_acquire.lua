#!lua
-- Take a lock. KEYS: lock, counter. ARGV: owner, ttl in ms, meta, keep in ms.
-- Returns {"granted", token} or {"held", ms left, token, meta}. Tokens are strings: a double would lose them in a reply.
local flat = redis.call('HGETALL', KEYS[1])
if #flat > 0 then
  local row = {}
  for at = 1, #flat, 2 do row[flat[at]] = flat[at + 1] end
  if not row.owner then
    return redis.error_reply('PYRESIL foreign lock')
  end
  if row.owner ~= ARGV[1] then
    return {'held', redis.call('PTTL', KEYS[1]), row.token, row.meta}
  end
  redis.call('HSET', KEYS[1], 'meta', ARGV[3])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {'granted', row.token}
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local token = now
local last = redis.call('GET', KEYS[2])
if last then
  -- Looked at before anything is written: a counter that is none grants nothing and stays as it is.
  local number = string.match(last, '^%d+$') and #last <= 16 and tonumber(last)
  if not number or number < 1 or number >= 9007199254740991 then
    return redis.error_reply('PYRESIL foreign counter')
  end
  if number >= now then token = number + 1 end
end
local text = string.format('%.0f', token)
redis.call('SET', KEYS[2], text, 'PX', ARGV[4])
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'token', text, 'meta', ARGV[3], 'acquired', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return {'granted', text}
