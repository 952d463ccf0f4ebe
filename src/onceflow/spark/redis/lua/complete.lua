-- Completes a batch whose chunks are all written.
-- ARGV: query, owner, batch, digest, marker fields, indexes, lists.
local query, owner, batch, digest = take(), take(), take(), take()
local fields = take_fields()
local indexes = take_indexes()
local lists = take_lists()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '1') then return {'already'} end
if not is_batch(batch, digest, '0') then return {'moved', field('batch'), field('complete')} end
local chunks = tonumber(field('chunks'))
for chunk = 0, chunks - 1 do
  if field('chunk:' .. chunk) ~= '1' then return {'missing', tostring(chunk), tostring(chunks)} end
end
refusal = refusal_of_unsealed(indexes, digest) or refusal_of_lists(lists, batch) or refusal_of_indexes(indexes)
if refusal then return refusal end

push_lists(lists, batch)
raise_to('newest_ms', tonumber(field('newest_next')) or -1)
redis.call('HDEL', MARKER, 'newest_next')
remove_old(indexes)
complete_ids(indexes)
mark_written()
for chunk = 0, chunks - 1 do
  redis.call('HDEL', MARKER, 'chunk:' .. chunk)
end
set_fields(fields)
return {'done'}
