-- Writes a whole batch: counts, buckets, lists and the marker as complete.
-- ARGV: query, owner, batch, digest, number of the batch before, marker fields, counts, buckets, lists.
local query, owner, batch, digest, previous = take(), take(), take(), take(), take()
local fields = take_fields()
local counts = take_counts()
local buckets = take_buckets()
local lists = take_lists()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '1') then return {'already'} end
refusal = refusal_of_unsealed(buckets, digest) or refusal_of_next(previous) or refusal_of_counts(counts) or refusal_of_lists(lists, batch)
  or refusal_of_buckets(buckets)
if refusal then return refusal end

add_counts(counts)
add_buckets(buckets, 'newest_ms')
push_lists(lists, batch)
remove_old(buckets)
complete_ids(buckets)
mark_written()
set_fields(fields)
return {'done'}
