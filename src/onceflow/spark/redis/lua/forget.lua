-- Deletes the keys that belong to the marker, with their claims; all others stay. No ARGV.
local own = {}
for index = 1, OWN do
  if claim_of(index) == MARKER then table.insert(own, index) end
end

for _, index in ipairs(own) do
  redis.call('UNLINK', KEYS[index])
  redis.call('HDEL', KEYS[OWN + index], KEYS[index])
end
return {'done'}
