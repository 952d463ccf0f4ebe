-- Records in the marker that a bucket is lost, if its index still names it and it does not exist.
-- KEYS: further ones: the bucket.
-- ARGV: owner, number of the index's key, the member.
local owner, key, member = take(), KEYS[take_number()], take()

if type_of(MARKER) ~= 'hash' or field('owner') ~= owner or type_of(key) ~= 'zset' then return {'already'} end
if redis.call('ZSCORE', key, member) and not exists(key .. ':' .. member) then record_loss(key .. ':' .. member) end
return {'done'}
