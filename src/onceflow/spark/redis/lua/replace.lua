-- Replaces the counts of another sink by this sink's, which has counted the same offsets. This sink is then deleted.
-- KEYS: further ones are the other sink's marker and its data keys, in the order of this sink's.
-- ARGV: query, owner, id of the replacement, number of the other marker's fields that are compared, their names and
-- values, indexes.
-- Returns 'already' if the marker has this id, 'other' with the first field that differs.
local query, owner, id = take(), take(), take()
local wanted = {}
for at = 1, take_number() do wanted[at] = {name = take(), value = take()} end
local indexes = take_indexes()
local OTHER = KEYS[2 * OWN + 1]

local function other_field(name)
  return redis.call('HGET', OTHER, name) or ''
end

local function other_key(index)
  return KEYS[2 * OWN + index - DATA_FIRST + 2]
end

-- Calls `call` with some members of an index at a time, and the names of their buckets under two keys.
local function for_buckets(index_key, key, other, call)
  return in_pieces(0, redis.call('ZCARD', index_key) - 1, function(first, last)
    local members, names, others = redis.call('ZRANGE', index_key, first, last), {}, {}
    for at, member in ipairs(members) do names[at], others[at] = key .. ':' .. member, other .. ':' .. member end
    return call(members, names, others)
  end)
end

local function refusal_of_other()
  local kind = type_of(OTHER)
  if kind ~= 'hash' then return {'other', 'type', kind} end
  for _, one in ipairs(wanted) do
    if other_field(one.name) ~= one.value then return {'other', one.name, other_field(one.name)} end
  end
  for _, name in ipairs({'since', 'offsets'}) do
    if field(name) ~= other_field(name) then return {'other', name, other_field(name)} end
  end
  for index = DATA_FIRST, OWN do
    local claim = redis.call('HGET', KEYS[OWN + index], other_key(index)) or ''
    if claim ~= OTHER then return {'other', 'claim of ' .. other_key(index), claim} end
  end
end

-- Every bucket exists. While a slot of a cluster moves, Redis refuses access to a name that is not at this node: also to
-- the names that are written later, where the script must not fail.
local function refusal_of_absent(key, other)
  for_buckets(other, key, other, function(_, _, others) redis.call('EXISTS', unpack(others)) end)
  return for_buckets(key, key, other, function(members, names, others)
    redis.call('EXISTS', unpack(others))
    if redis.call('EXISTS', unpack(names)) == #names then return nil end
    for at, name in ipairs(names) do
      if not exists(name) then return refusal_of_loss(key, members[at]) end
    end
  end)
end

-- Commands that no other script calls.
local function refusal_of_rights()
  local reply = redis.pcall('RENAME', MARKER .. ':probe:hash', MARKER .. ':probe:set')
  local failure = type(reply) == 'table' and reply.err or ''
  if string.find(failure, 'permission') or string.find(failure, "can't run this command") then
    return {'forbidden', 'RENAME', failure}
  end
end

local function move_buckets(key, other)
  for_buckets(other, key, other, function(_, _, others) redis.call('UNLINK', unpack(others)) end)
  for_buckets(key, key, other, function(_, names, others)
    for at, name in ipairs(names) do redis.call('RENAME', name, others[at]) end
  end)
end

if type_of(OTHER) == 'hash' and other_field('rebuilt') == id then return {'already'} end
local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if field('complete') ~= '1' then return {'moved', field('batch'), field('complete')} end
refusal = refusal_of_other() or refusal_of_rights()
if refusal then return refusal end
local places = {}
for index = DATA_FIRST, OWN do places[KEYS[index]] = other_key(index) end
for _, index in ipairs(indexes) do
  refusal = refusal_of_type(index.key, 'zset') or refusal_of_type(places[index.key], 'zset')
    or refusal_of_absent(index.key, places[index.key])
  if refusal then return refusal end
end

for _, index in ipairs(indexes) do move_buckets(index.key, places[index.key]) end
for key, other in pairs(places) do
  redis.call('UNLINK', other)
  if exists(key) then
    redis.call('RENAME', key, other)
    redis.call('HSET', OTHER, written_field(other), '1')
  else
    redis.call('HDEL', OTHER, written_field(other))
  end
end
for _, name in ipairs({'newest_ms', 'ids_times'}) do
  local value = field(name)
  if value == '' then redis.call('HDEL', OTHER, name) else redis.call('HSET', OTHER, name, value) end
end
-- The other sink claims the ids of a batch that it is writing again.
for _, name in ipairs({'sealed', 'ids_next'}) do redis.call('HDEL', OTHER, name) end
redis.call('HSET', OTHER, 'rebuilt', id)
for index = 1, OWN do redis.call('HDEL', KEYS[OWN + index], KEYS[index]) end
redis.call('UNLINK', MARKER, HISTORY)
return {'done'}
