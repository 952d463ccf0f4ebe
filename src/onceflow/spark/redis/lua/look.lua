-- Checks some members of an index: whether the bucket of each exists.
-- ARGV: owner, number of the index's key, cursor of ZSCAN, number of members to check, roughly.
-- Returns 'done' and the next cursor, 0 after the last member.
local owner, key, cursor, count = take(), KEYS[take_number()], take(), take()

local is_own = type_of(MARKER) == 'hash' and field('owner') == owner and type_of(key) == 'zset'
if not is_own then return {'done', '0'} end
local reply = redis.call('ZSCAN', key, cursor, 'COUNT', count)
for at = 1, #reply[2], 2 do
  if not exists(key .. ':' .. reply[2][at]) then return refusal_of_loss(key, reply[2][at]) end
end
return {'done', reply[1]}
