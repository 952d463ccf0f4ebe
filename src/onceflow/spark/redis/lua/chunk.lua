-- Writes one chunk of a batch that was begun.
-- ARGV: query, owner, batch, digest, number of the chunk, counts, buckets.
local query, owner, batch, digest, chunk = take(), take(), take(), take(), take()
local counts = take_counts()
local buckets = take_buckets()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if is_batch(batch, digest, '1') then return {'already'} end
if not is_batch(batch, digest, '0') or tonumber(chunk) >= tonumber(field('chunks')) then
  return {'moved', field('batch'), field('complete')}
end
if field('chunk:' .. chunk) == '1' then return {'already'} end
refusal = refusal_of_unsealed(buckets, digest) or refusal_of_counts(counts) or refusal_of_buckets(buckets)
if refusal then return refusal end

add_counts(counts)
add_buckets(buckets, 'newest_next')
remove_old(buckets)
mark_written()
redis.call('HSET', MARKER, 'chunk:' .. chunk, '1')
redis.call('HINCRBY', MARKER, 'done', 1)
return {'done'}
