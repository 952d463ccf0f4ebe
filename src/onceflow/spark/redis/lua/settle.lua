-- Writes once on this connection, after the batch's last write: WAITAOF waits for it, and so for all earlier writes.
-- ARGV: query, owner, batch.
local query, owner, batch = take(), take(), take()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if field('batch') ~= batch or field('complete') ~= '1' then return {'moved', field('batch'), field('complete')} end

redis.call('HSET', MARKER, 'settled', batch)
return {'done'}
