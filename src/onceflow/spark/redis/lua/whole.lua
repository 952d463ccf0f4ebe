-- Writes a whole batch: counts, lists and the marker as complete.
-- ARGV: query, owner, batch, digest, number of the batch before, marker fields, counts, lists.
local query, owner, batch, digest, previous = take(), take(), take(), take(), take()
local fields = take_fields()
local counts = take_counts()
local lists = take_lists()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '1') then return {'already'} end
refusal = refusal_of_next(previous) or refusal_of_counts(counts) or refusal_of_lists(lists, batch)
if refusal then return refusal end

add_counts(counts)
push_lists(lists, batch)
mark_written()
set_fields(fields)
return {'done'}
