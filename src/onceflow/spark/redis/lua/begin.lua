-- Begins a batch of several chunks: writes its fields and the number of chunks.
-- ARGV: query, owner, batch, digest, number of the batch before, marker fields.
local query, owner, batch, digest, previous = take(), take(), take(), take(), take()
local fields = take_fields()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '0') and field('chunks') == fields['chunks'] then return {'already'} end
refusal = refusal_of_next(previous)
if refusal then return refusal end

set_fields(fields)
return {'done'}
