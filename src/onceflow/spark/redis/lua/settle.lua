-- A write of this connection's own, after the batch's last one: WAITAOF waits for it and so for all before it.
-- ARGV: query, owner, batch.
local query, owner, batch = take(), take(), take()

local refusal = refusal_of_owner(query, owner)
if refusal then return refusal end
if field('batch') ~= batch or field('complete') ~= '1' then return {'moved', field('batch'), field('complete')} end

redis.call('HSET', MARKER, 'settled', batch)
return {'done'}
