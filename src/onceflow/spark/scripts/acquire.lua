-- Takes the next owner epoch, and makes the marker where nothing is there and nothing may be.
-- ARGV: query, '1' if the marker may be made, the marker's first fields, number of the sink's streams.
-- Returns 'owned' and the epoch.
local query, may_make = take(), take()
local fields = take_fields()
local streams = take_number()

local kind = type_of(MARKER)
if kind == 'none' then
  local key = present_data()
  if key then return {'data', key} end
  if may_make ~= '1' then return {'marker', kind} end
elseif kind ~= 'hash' then
  return {'marker', kind}
elseif field('query') ~= query then
  return {'query', field('query')}
elseif not is_count(field('owner')) then
  return {'misfit', MARKER, 'owner', field('owner')}
end
local refusal = refusal_of_type(HISTORY, 'list')
if refusal then return refusal end

-- A user that may not call one of the scripts' commands must learn it here, before there is anything to tear: each
-- command is tried on a name of its own, where it leaves nothing behind: what removes comes first, on nothing.
local probe = MARKER .. ':probe:'
redis.call('HDEL', probe .. 'hash', 'x')
redis.call('ZREM', probe .. 'zset', 'x')
redis.call('LTRIM', probe .. 'list', 1, 0)
redis.call('HSET', probe .. 'hash', 'x', '1')
redis.call('HDEL', probe .. 'hash', 'x')
redis.call('HINCRBY', probe .. 'hash', 'x', '1')
redis.call('HDEL', probe .. 'hash', 'x')
redis.call('ZADD', probe .. 'zset', 1, 'x')
redis.call('ZREM', probe .. 'zset', 'x')
redis.call('LPUSH', probe .. 'list', 'x')
redis.call('LTRIM', probe .. 'list', 1, 0)
if streams > 0 then
  redis.call('XADD', probe .. 'stream', 'NOMKSTREAM', '*', 'x', 'x')
  local answer = redis.pcall('XINFO', 'STREAM', probe .. 'stream')
  if answer.err and not string.find(answer.err, 'no such key') then return redis.error_reply(answer.err) end
end

if kind == 'none' then set_fields(fields) end
return {'owned', tostring(redis.call('HINCRBY', MARKER, 'owner', 1))}
