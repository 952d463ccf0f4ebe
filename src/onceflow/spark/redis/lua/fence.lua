-- Common start of every script of the sink; it precedes each of them.
--
-- A script of Redis is atomic but is not rolled back when it fails. So every script first checks the marker, the type
-- of each key and each value that it will change, and returns a refusal if one is wrong; only then does it write, and no
-- write can fail any more. A refusal is a list of texts; the first names the reason. Counts are compared as text: Lua's
-- numbers are doubles of 53 bits.
--
-- KEYS: marker, history, then all data keys of the sink; then the claims hash of each, in the same order; then the
-- buckets that a script changes. A claims hash has names of keys as fields; the value is the one marker that the key
-- belongs to.
-- ARGV is taken in order, from the first to the last. The first is the number of the sink's own keys.

local MARKER, HISTORY = KEYS[1], KEYS[2]
local DATA_FIRST = 3
local OWN = tonumber(ARGV[1])
local DIGITS_MAX = 18

local taken = 1

local function take()
  taken = taken + 1
  return ARGV[taken]
end

local function take_number()
  return tonumber(take())
end

local function field(name)
  return redis.call('HGET', MARKER, name) or ''
end

local function type_of(key)
  return redis.call('TYPE', key).ok
end

-- Two numbers of 18 digits add up to 19 digits below 2^63, so HINCRBY cannot overflow.
local function is_count(text)
  local digits = string.match(text, '^%-?([1-9]%d*)$') or string.match(text, '^(0)$')
  return digits ~= nil and #digits <= DIGITS_MAX
end

-- The marker that a key belongs to; false if no marker claims it.
local function claim_of(index)
  return redis.call('HGET', KEYS[OWN + index], KEYS[index])
end

-- Every key of the sink is claimed for its marker.
local function refusal_of_claims()
  for index = 1, OWN do
    local claim = claim_of(index)
    if not claim then return {'unclaimed', KEYS[index]} end
    if claim ~= MARKER then return {'claimed', KEYS[index], claim} end
  end
end

-- The marker belongs to this query and this start of it, and every key belongs to the marker.
local function refusal_of_start(query, owner)
  local kind = type_of(MARKER)
  if kind ~= 'hash' then return {'marker', kind} end
  if field('query') ~= query then return {'query', field('query')} end
  if field('owner') ~= owner then return {'owner', field('owner')} end
  return refusal_of_claims()
end

local function exists(key)
  return redis.call('EXISTS', key) == 1
end

local function written_field(key)
  return 'written:' .. key
end

-- A data key that was written and no longer exists, or a lost bucket that an earlier script met. A script that empties
-- a key forgets that it was written.
local function lost_key()
  if field('lost') ~= '' then return field('lost') end
  for index = DATA_FIRST, OWN do
    local key = KEYS[index]
    if not exists(key) and field(written_field(key)) ~= '' then return key end
  end
end

-- Keeps in the marker that a bucket is lost, for the next start.
local function record_loss(key)
  redis.call('HSET', MARKER, 'lost', (string.gsub(key, '[^!-~]', '?')))
end

-- Deletes the buckets among KEYS, those of a key that belongs to the marker.
local function unlink_buckets()
  for at = 2 * OWN + 1, #KEYS do
    for index = 1, OWN do
      local beside = KEYS[index] .. ':'
      if string.sub(KEYS[at], 1, #beside) == beside and claim_of(index) == MARKER then
        redis.call('UNLINK', KEYS[at])
      end
    end
  end
end

-- Called after the writes of a script: every existing data key was written by this sink.
local function mark_written()
  for index = DATA_FIRST, OWN do
    local key = KEYS[index]
    if exists(key) and field(written_field(key)) == '' then
      redis.call('HSET', MARKER, written_field(key), '1')
    end
  end
end

-- The marker is this start's, and every key that it lists as written exists.
local function refusal_of_owner(query, owner)
  local refusal = refusal_of_start(query, owner)
  if refusal then return refusal end
  local key = lost_key()
  if key then return {'lost', key} end
end

local function present_data()
  for index = DATA_FIRST, OWN do
    if exists(KEYS[index]) then return KEYS[index] end
  end
end

-- The batch before is complete, and before the first batch there is no data.
local function refusal_of_next(previous)
  if field('batch') ~= previous or field('complete') ~= '1' then
    return {'moved', field('batch'), field('complete')}
  end
  if previous ~= '-1' then return nil end
  -- Ids may be claimed before.
  for index = DATA_FIRST, OWN do
    local key = KEYS[index]
    if exists(key) and field(written_field(key)) == '' then return {'data', key} end
  end
end

local function is_batch(batch, digest, complete)
  return field('batch') == batch and field('digest') == digest and field('complete') == complete
end

-- Pairs of name and value for the marker.
local function take_fields()
  local fields = {}
  for _ = 1, take_number() do
    local name = take()
    fields[name] = take()
  end
  return fields
end

local function set_fields(fields)
  for name, value in pairs(fields) do
    redis.call('HSET', MARKER, name, value)
  end
end

-- Rankings: pairs of numbers of keys, a hash and the sorted set that repeats its values as scores.
-- Counts: triples of the number of a hash among KEYS, field, amount.
-- Sets: the numbers of a hash of values and of the hash of their versions, field, version, value.
local function take_counts()
  local counts = {rankings = {}}
  for _ = 1, take_number() do
    local hash = take_number()
    counts.rankings[hash] = take_number()
  end
  counts.size = take_number()
  counts.first = taken + 1
  taken = taken + 3 * counts.size
  counts.sets = {size = take_number(), first = taken + 1}
  taken = taken + 5 * counts.sets.size
  return counts
end

local function refusal_of_type(key, wanted)
  local kind = type_of(key)
  if kind ~= wanted and kind ~= 'none' then return {'misfit', key, '', kind} end
end

local function refusal_of_count(key, name, amount)
  if not is_count(amount) then return {'amount', key, name, amount} end
  local value = redis.call('HGET', key, name)
  if value and not is_count(value) then return {'misfit', key, name, value} end
end

local function refusal_of_sets(sets)
  for row = 0, sets.size - 1 do
    local at = sets.first + 5 * row
    local values, versions = KEYS[tonumber(ARGV[at])], KEYS[tonumber(ARGV[at + 1])]
    local refusal = refusal_of_type(values, 'hash') or refusal_of_type(versions, 'hash')
      or refusal_of_count(versions, ARGV[at + 2], ARGV[at + 3])
    if refusal then return refusal end
  end
end

-- By bytes: Lua's own comparison of texts follows the server's locale.
local function comes_after(one, other)
  for at = 1, math.min(#one, #other) do
    local mine, theirs = string.byte(one, at), string.byte(other, at)
    if mine ~= theirs then return mine > theirs end
  end
  return #one > #other
end

-- Whole numbers as `is_count` takes them.
local function is_greater(one, other)
  local one_below, other_below = string.sub(one, 1, 1) == '-', string.sub(other, 1, 1) == '-'
  if one_below ~= other_below then return other_below end
  if one_below then one, other = string.sub(other, 2), string.sub(one, 2) end
  if #one ~= #other then return #one > #other end
  return comes_after(one, other)
end

-- Independent of the values' order of arrival, so that batches joined by a repair have the same result.
local function is_newer(values, versions, name, version, value)
  local known = redis.call('HGET', versions, name)
  if known ~= version then return not known or is_greater(version, known) end
  return comes_after(value, redis.call('HGET', values, name) or '')
end

local function set_newer(sets)
  for row = 0, sets.size - 1 do
    local at = sets.first + 5 * row
    local values, versions = KEYS[tonumber(ARGV[at])], KEYS[tonumber(ARGV[at + 1])]
    local name, version, value = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
    if is_newer(values, versions, name, version, value) then
      redis.call('HSET', values, name, value)
      redis.call('HSET', versions, name, version)
    end
  end
end

local function refusal_of_counts(counts)
  local checked = {}
  for row = 0, counts.size - 1 do
    local at = counts.first + 3 * row
    local hash = tonumber(ARGV[at])
    if not checked[hash] then
      checked[hash] = true
      local ranking = counts.rankings[hash]
      local refusal = refusal_of_type(KEYS[hash], 'hash') or (ranking and refusal_of_type(KEYS[ranking], 'zset'))
      if refusal then return refusal end
    end
    local refusal = refusal_of_count(KEYS[hash], ARGV[at + 1], ARGV[at + 2])
    if refusal then return refusal end
  end
  return refusal_of_sets(counts.sets)
end

local function add_counts(counts)
  for row = 0, counts.size - 1 do
    local at = counts.first + 3 * row
    local hash = tonumber(ARGV[at])
    local sum = redis.call('HINCRBY', KEYS[hash], ARGV[at + 1], ARGV[at + 2])
    local ranking = counts.rankings[hash]
    if ranking then redis.call('ZADD', KEYS[ranking], sum, ARGV[at + 1]) end
  end
  set_newer(counts.sets)
end

-- Lists, then streams: for each the number of its key, the length to keep, and its new entries, oldest first.
local function take_keys_of_entries()
  local lists = {}
  for _ = 1, take_number() do
    local list = {}
    list.key = KEYS[take_number()]
    list.length = take_number()
    list.size = take_number()
    list.first = taken + 1
    taken = taken + list.size
    table.insert(lists, list)
  end
  return lists
end

local function take_lists()
  return {plain = take_keys_of_entries(), streams = take_keys_of_entries()}
end

-- The largest id that the stream ever had; its entries may be deleted.
local function last_id(key)
  local info = redis.call('XINFO', 'STREAM', key)
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then return info[at + 1] end
  end
end

-- XADD fails on an id that is not larger than all earlier ones; this batch's ids start with its number.
local function refusal_of_stream(stream, batch)
  local refusal = refusal_of_type(stream.key, 'stream')
  if refusal or type_of(stream.key) == 'none' then return refusal end
  local last = last_id(stream.key)
  if not is_greater(batch, string.match(last, '^%d+')) then return {'stream', stream.key, last, batch} end
end

local function refusal_of_lists(lists, batch)
  for _, list in ipairs(lists.plain) do
    local refusal = refusal_of_type(list.key, 'list')
    if refusal then return refusal end
  end
  for _, stream in ipairs(lists.streams) do
    local refusal = refusal_of_stream(stream, batch)
    if refusal then return refusal end
  end
end

local function push_lists(lists, batch)
  for _, stream in ipairs(lists.streams) do
    for index = 1, stream.size do
      local value = ARGV[stream.first + index - 1]
      redis.call('XADD', stream.key, 'MAXLEN', '=', stream.length, batch .. '-' .. index, 'value', value)
    end
  end
  for _, list in ipairs(lists.plain) do
    for at = list.first, list.first + list.size - 1 do
      redis.call('LPUSH', list.key, ARGV[at])
    end
    redis.call('LTRIM', list.key, 0, list.length - 1)
  end
end
