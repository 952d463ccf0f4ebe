-- Records that all ids of a batch are claimed, and removes those that no record from this batch on can have again.
-- ARGV: query, owner, batch, digest, number of the batch before, newest times by partition, indexes, number of the ids'
-- index, number of claims, then their names, number of partitions, then the first and the last start that each still
-- needs.
local query, owner, _, digest, previous, times = take(), take(), take(), take(), take(), take()
local indexes = take_indexes()
local ids = indexes[take_number()]
local claims = {}
for number = 1, take_number() do claims[number] = take() end
local needed = {}
for number = 1, take_number() do needed[number] = {first = take_number(), last = take_number()} end

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if field('sealed') == digest then return {'already'} end
refusal = refusal_of_next(previous) or refusal_of_type(ids.key, 'zset') or refusal_of_type(ids.late, 'zset')
if refusal then return refusal end
-- Redis has lost claims, or a rebuild has replaced them.
for _, claim in ipairs(claims) do
  if not is_claimed(ids, claim) then return {'unsealed'} end
end

local function is_needed(start)
  for _, range in ipairs(needed) do
    if range.first <= start and start <= range.last then return true end
  end
end

local old = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', ids.key, '-inf', '+inf')) do
  if #old < PIECE and not is_needed(tonumber(member)) then table.insert(old, member) end
end
if #old > 0 then remove(ids, old) end
if not exists(ids.key) then redis.call('HDEL', MARKER, written_field(ids.key)) end
set_fields({sealed = digest, ids_next = times})
return {'done'}
