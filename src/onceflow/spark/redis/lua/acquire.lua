-- Takes the next owner epoch; creates the marker if nothing exists yet. Claims the sink's keys. Adds the written keys to
-- a marker of an earlier format.
-- ARGV: query, '1' if the marker may be created, the driver's clock in ms, the marker's first fields, number of the sink's
-- streams, indexes.
-- Returns 'owned' and the epoch.
local query, may_create, now_ms = take(), take(), take_number()
local fields = take_fields()
local streams = take_number()
local indexes = take_indexes()
local FORMAT = '4'
-- Markers of these formats have no claims.
local UNCLAIMED = {['1'] = true, ['2'] = true}

-- A user without the right to one of the scripts' commands is refused here, before anything is written: each command is
-- tried on a key of its own and leaves nothing behind. Commands that remove come first, on absent keys.
local probe = MARKER .. ':probe:'
local hash, zset, list, stream = probe .. 'hash', probe .. 'zset', probe .. 'list', probe .. 'stream'
local set = probe .. 'set'
local tried = {
  {'TYPE', hash}, {'EXISTS', hash}, {'HGET', hash, 'x'}, {'HGETALL', hash},
  {'HDEL', hash, 'x'}, {'ZREM', zset, 'x'}, {'LTRIM', list, 1, 0},
  {'HSET', hash, 'x', '1'}, {'HDEL', hash, 'x'}, {'UNLINK', hash}, {'HINCRBY', hash, 'x', '1'}, {'HDEL', hash, 'x'},
  {'ZADD', zset, 1, 'x'}, {'ZREM', zset, 'x'}, {'LPUSH', list, 'x'}, {'LTRIM', list, 1, 0},
}
if streams > 0 then
  table.insert(tried, {'XADD', stream, 'NOMKSTREAM', '*', 'x', 'x'})
  table.insert(tried, {'XINFO', 'STREAM', stream})
end
if #indexes > 0 then
  for _, command in ipairs({
    {'HMGET', hash, 'x'}, {'ZSCORE', zset, 'x'}, {'ZRANGEBYSCORE', zset, 1, 2}, {'ZREVRANGEBYSCORE', zset, 2, 1},
    {'ZRANK', zset, 'x'}, {'ZREMRANGEBYRANK', zset, 0, 0}, {'ZSCAN', zset, 0}, {'ZINCRBY', zset, 1, 'x'},
    {'ZREM', zset, 'x'}, {'SCARD', set}, {'SMEMBERS', set}, {'SADD', set, 'x'}, {'UNLINK', set}, {'PFADD', set, 'x'},
    {'UNLINK', set},
  }) do table.insert(tried, command) end
end
-- A right to a key is not yet one to its buckets. A bucket of this name may have any type.
for _, index in ipairs(indexes) do table.insert(tried, {'HDEL', index.key .. ':probe', 'x'}) end
for _, command in ipairs(tried) do
  local reply = redis.pcall(unpack(command))
  local failure = type(reply) == 'table' and reply.err
  if failure and (string.find(failure, 'permission') or string.find(failure, "can't run this command")
    or string.find(failure, "can't access")) then
    return {'forbidden', command[1], failure}
  elseif failure and not string.find(failure, 'no such key') and not string.find(failure, 'WRONGTYPE') then
    return reply
  end
end

-- A key that this version of the job no longer writes may be deleted.
local function forget_other_keys()
  local own = {}
  for index = DATA_FIRST, OWN do own[written_field(KEYS[index])] = true end
  local pairs_of_marker = redis.call('HGETALL', MARKER)
  for at = 1, #pairs_of_marker, 2 do
    if string.sub(pairs_of_marker[at], 1, 8) == 'written:' and not own[pairs_of_marker[at]] then
      redis.call('HDEL', MARKER, pairs_of_marker[at])
    end
  end
end

-- An unclaimed key becomes this sink's if it does not exist, or if this sink wrote it, as one without claims did.
local function refusal_of_claiming(is_unclaimed)
  for index = 1, OWN do
    local key = KEYS[index]
    local refusal = refusal_of_type(KEYS[OWN + index], 'hash')
    if refusal then return refusal end
    local claim = claim_of(index)
    if claim and claim ~= MARKER then return {'claimed', key, claim} end
    local is_ours = claim or index < DATA_FIRST or is_unclaimed or field(written_field(key)) ~= ''
    if not is_ours and exists(key) then return {'strange', key} end
  end
end

local function claim_keys()
  for index = 1, OWN do redis.call('HSET', KEYS[OWN + index], KEYS[index], MARKER) end
end

local kind = type_of(MARKER)
local format = kind == 'hash' and field('format')
local is_earlier = format and format ~= FORMAT
if kind == 'none' then
  if may_create ~= '1' then return {'marker', kind} end
elseif kind ~= 'hash' then
  return {'marker', kind}
elseif field('query') ~= query then
  return {'query', field('query')}
elseif not is_count(field('owner')) then
  return {'misfit', MARKER, 'owner', field('owner')}
end
local refusal = refusal_of_type(HISTORY, 'list') or refusal_of_claiming(UNCLAIMED[format])
if refusal then return refusal end
local key = kind == 'none' and present_data()
if key then return {'data', key} end

if kind == 'none' then
  set_fields(fields)
elseif is_earlier then
  mark_written()
  redis.call('HSET', MARKER, 'format', FORMAT)
end
for _, index in ipairs(indexes) do redis.call('HSET', MARKER, 'index:' .. index.key, index.kind) end
claim_keys()
forget_other_keys()
-- At least the clock: if Redis loses the epoch of a start, the next one must not take the same.
if redis.call('HINCRBY', MARKER, 'owner', 1) < now_ms then redis.call('HSET', MARKER, 'owner', digits(now_ms)) end
return {'owned', field('owner')}
