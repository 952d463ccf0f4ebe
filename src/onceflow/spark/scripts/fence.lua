-- What every script of the sink begins with; it is put before each of them.
--
-- A script of Redis is atomic but is not rolled back when it fails. So every script first checks the marker, the type
-- of each key and each value that it will change, and returns a refusal; only then does it write, and no write can
-- fail any more. A refusal is a list of texts whose first says what was found. Counts are compared as text: a number
-- of Lua is a double and holds 53 bits.
--
-- KEYS: marker, history, then every data key of the sink, always all of them.
-- ARGV is taken in order, from the first to the last.

local MARKER, HISTORY = KEYS[1], KEYS[2]
local DATA_FIRST = 3
local DIGITS_MAX = 18

local taken = 0

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

-- The marker belongs to this query and this start of it.
local function refusal_of_owner(query, owner)
  local kind = type_of(MARKER)
  if kind ~= 'hash' then return {'marker', kind} end
  if field('query') ~= query then return {'query', field('query')} end
  if field('owner') ~= owner then return {'owner', field('owner')} end
end

local function present_data()
  for index = DATA_FIRST, #KEYS do
    if redis.call('EXISTS', KEYS[index]) == 1 then return KEYS[index] end
  end
end

-- The batch before is complete, and before the first batch there is no data.
local function refusal_of_next(previous)
  if field('batch') ~= previous or field('complete') ~= '1' then
    return {'moved', field('batch'), field('complete')}
  end
  local key = previous == '-1' and present_data()
  if key then return {'data', key} end
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
local function take_counts()
  local counts = {rankings = {}}
  for _ = 1, take_number() do
    local hash = take_number()
    counts.rankings[hash] = take_number()
  end
  counts.size = take_number()
  counts.first = taken + 1
  taken = taken + 3 * counts.size
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
end

local function add_counts(counts)
  for row = 0, counts.size - 1 do
    local at = counts.first + 3 * row
    local hash = tonumber(ARGV[at])
    local sum = redis.call('HINCRBY', KEYS[hash], ARGV[at + 1], ARGV[at + 2])
    local ranking = counts.rankings[hash]
    if ranking then redis.call('ZADD', KEYS[ranking], sum, ARGV[at + 1]) end
  end
end

-- Lists: for each the number of its key, the length to keep, and its new entries, oldest first.
local function take_lists()
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

local function refusal_of_lists(lists)
  for _, list in ipairs(lists) do
    local refusal = refusal_of_type(list.key, 'list')
    if refusal then return refusal end
  end
end

local function push_lists(lists)
  for _, list in ipairs(lists) do
    for at = list.first, list.first + list.size - 1 do
      redis.call('LPUSH', list.key, ARGV[at])
    end
    redis.call('LTRIM', list.key, 0, list.length - 1)
  end
end
