-- Deletes the rest of counts with a lost key, so that everything is counted again from the first offsets.
-- ARGV: query, owner.
local query, owner = take(), take()

local refusal = refusal_of_start(query, owner)
if refusal then return refusal end
if not lost_key() then return {'already'} end

for chunk = 0, tonumber(field('chunks')) - 1 do
  redis.call('HDEL', MARKER, 'chunk:' .. chunk)
end
redis.call('UNLINK', HISTORY)
for index = DATA_FIRST, OWN do
  redis.call('UNLINK', KEYS[index])
  redis.call('HDEL', MARKER, written_field(KEYS[index]))
end
set_fields({
  batch = '-1', complete = '1', digest = '', ranges = '{}', offsets = field('since'), chunks = '0', done = '0',
})
return {'done'}
