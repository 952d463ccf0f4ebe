-- Completes a batch whose chunks are all written.
-- ARGV: query, owner, batch, digest, marker fields, lists.
local query, owner, batch, digest = take(), take(), take(), take()
local fields = take_fields()
local lists = take_lists()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '1') then return {'already'} end
if not is_batch(batch, digest, '0') then return {'moved', field('batch'), field('complete')} end
local chunks = tonumber(field('chunks'))
for chunk = 0, chunks - 1 do
  if field('chunk:' .. chunk) ~= '1' then return {'missing', tostring(chunk), tostring(chunks)} end
end
refusal = refusal_of_lists(lists, batch)
if refusal then return refusal end

push_lists(lists, batch)
mark_written()
for chunk = 0, chunks - 1 do
  redis.call('HDEL', MARKER, 'chunk:' .. chunk)
end
set_fields(fields)
return {'done'}
