-- Deletes the keys that belong to the marker, with their claims; all others stay.
-- KEYS: further ones are buckets of these keys, which are deleted instead, in several calls before the last.
-- ARGV: none.
local own = {}
for index = 1, OWN do
  if claim_of(index) == MARKER then table.insert(own, index) end
end

if #KEYS > 2 * OWN then
  -- A reset that is killed in between leaves counts that the next start counts again.
  if claim_of(1) == MARKER and type_of(MARKER) == 'hash' then record_loss(KEYS[#KEYS]) end
  unlink_buckets()
  return {'done'}
end

for _, index in ipairs(own) do
  redis.call('UNLINK', KEYS[index])
  redis.call('HDEL', KEYS[OWN + index], KEYS[index])
end
return {'done'}
