-- Deletes the rest of counts with a lost key, so that everything is counted again from the first offsets.
-- KEYS: further ones are buckets, which are deleted instead, in several calls before the last.
-- ARGV: query, owner.
local query, owner = take(), take()

local refusal = refusal_of_start(query, owner)
if refusal then return refusal end
if not lost_key() then return {'already'} end

if #KEYS > 2 * OWN then
  -- Another start continues if this one is killed: the lost key still is.
  unlink_buckets()
  return {'done'}
end

for chunk = 0, tonumber(field('chunks')) - 1 do
  redis.call('HDEL', MARKER, 'chunk:' .. chunk)
end
redis.call('UNLINK', HISTORY)
for index = DATA_FIRST, OWN do
  redis.call('UNLINK', KEYS[index])
  redis.call('HDEL', MARKER, written_field(KEYS[index]))
end
for _, name in ipairs({'lost', 'newest_ms', 'newest_next', 'sealed', 'ids_times', 'ids_next'}) do
  redis.call('HDEL', MARKER, name)
end
set_fields({
  batch = '-1', complete = '1', digest = '', ranges = '{}', offsets = field('since'), chunks = '0', done = '0',
})
return {'done'}
