-- Buckets: keys that an index names. The index is one of the sink's own keys, a sorted set; the data of its member M is
-- the key INDEX:M. The score is the bucket's start, or the end of a user's last interval.
--
-- A bucket is kept while its score is not below the marker's `newest_ms` minus the index's retention. `newest_ms` changes
-- with the last script of a batch only, so all scripts of all attempts at a batch refuse the same rows.

-- Most arguments of one call; Lua's unpack has a limit of some 8,000.
local PIECE = 1000
-- Most buckets that one script removes, so that it is not longer than one that writes; the next script removes more.
local REMOVED_MAX = 10000
-- Whole numbers below this are exact as doubles, which scores and Lua's numbers are.
local EXACT = 2 ^ 53

local TYPES = {
  ['increment'] = {hash = true}, ['ranking'] = {zset = true}, ['distinct'] = {set = true, string = true},
  ['intervals'] = {zset = true}, ['interval-buckets'] = {hash = true}, ['ids'] = {hash = true},
}

local function digits(number)
  return string.format('%.0f', number)
end

-- Calls `call` with the numbers of the first and the last of at most PIECE things.
local function in_pieces(first, last, call)
  for from = first, last, PIECE do
    local failure = call(from, math.min(from + PIECE - 1, last))
    if failure then return failure end
  end
end

-- For each index: kind, number of its key, retention or '', width, limit, number of the key with its late rows or 0, the
-- name that these have or '', number of the following indexes that count its intervals.
local function take_indexes()
  local indexes = {}
  for number = 1, take_number() do
    local index = {kind = take(), key = KEYS[take_number()], groups = {}}
    index.retention = tonumber(take())
    index.width = take_number()
    index.limit = take_number()
    index.late = KEYS[take_number()]
    index.late_name = take()
    index.counters = take_number()
    indexes[number] = index
  end
  return indexes
end

-- Groups of rows of one bucket: number of the index, member, number of rows, then their names and amounts, or values.
local function take_buckets()
  local indexes = take_indexes()
  for _ = 1, take_number() do
    local index = indexes[take_number()]
    local group = {member = take(), size = take_number(), first = taken + 1}
    group.last = taken + group.size
    group.start = index.kind ~= 'intervals' and tonumber(string.match(group.member, '^%d+'))
    group.key = index.key .. ':' .. group.member
    local has_amounts = index.kind == 'increment' or index.kind == 'ranking'
    taken = taken + group.size * (has_amounts and 2 or 1)
    table.insert(index.groups, group)
  end
  return indexes
end

-- A bucket that its index names and that does not exist. While a slot of a cluster moves it may be at the other node,
-- since not every bucket is among KEYS; `confirm` has it there.
local function refusal_of_loss(index_key, member)
  local in_hex = string.gsub(member, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  return {'lost', index_key .. ':' .. member, index_key, in_hex}
end

-- The bucket is in the index and exists, or neither, and has a suitable type.
local function refusal_of_place(index, member, key)
  local score, kind = redis.call('ZSCORE', index.key, member), type_of(key)
  if score and kind == 'none' then return refusal_of_loss(index.key, member) end
  if not score and kind ~= 'none' then return {'strange', key} end
  if kind ~= 'none' and not TYPES[index.kind][kind] then return {'misfit', key, '', kind} end
  -- PFADD without elements changes nothing, and fails for a text that is not a HyperLogLog.
  local reply = kind == 'string' and redis.pcall('PFADD', key)
  if type(reply) == 'table' and reply.err then return {'misfit', key, '', kind} end
end

local function amount_at(group, at)
  return ARGV[at + group.size]
end

local refusal_of = {}

refusal_of['increment'] = function(_, group)
  return in_pieces(group.first, group.last, function(first, last)
    local values = redis.call('HMGET', group.key, unpack(ARGV, first, last))
    for at = first, last do
      local amount, value = amount_at(group, at), values[at - first + 1]
      if not is_count(amount) then return {'amount', group.key, ARGV[at], amount} end
      if value and not is_count(value) then return {'misfit', group.key, ARGV[at], value} end
    end
  end)
end

refusal_of['ranking'] = function(_, group)
  for at = group.first, group.last do
    local amount = amount_at(group, at)
    if not is_count(amount) or math.abs(tonumber(amount)) >= EXACT then
      return {'amount', group.key, ARGV[at], amount}
    end
    local score = redis.call('ZSCORE', group.key, ARGV[at])
    if score and math.abs(tonumber(score) + tonumber(amount)) >= EXACT then
      return {'misfit', group.key, ARGV[at], score}
    end
  end
end

refusal_of['distinct'] = function() end

local add_to = {}

add_to['increment'] = function(_, group)
  for at = group.first, group.last do
    redis.call('HINCRBY', group.key, ARGV[at], amount_at(group, at))
  end
end

add_to['ranking'] = function(_, group)
  for at = group.first, group.last do
    redis.call('ZINCRBY', group.key, amount_at(group, at), ARGV[at])
  end
end

local function estimate(key, members)
  in_pieces(1, #members, function(first, last) redis.call('PFADD', key, unpack(members, first, last)) end)
end

-- The kind of a bucket follows from the number of its members alone, not from their order.
add_to['distinct'] = function(index, group)
  local command = type_of(group.key) == 'string' and 'PFADD' or 'SADD'
  in_pieces(group.first, group.last, function(first, last)
    redis.call(command, group.key, unpack(ARGV, first, last))
  end)
  if command == 'SADD' and redis.call('SCARD', group.key) > index.limit then
    local members = redis.call('SMEMBERS', group.key)
    redis.call('UNLINK', group.key)
    estimate(group.key, members)
  end
end

-- Returns whether the buckets are removed. While a slot of a cluster moves, Redis refuses a script's access to a key that
-- is at the other node already. At this point the script must not fail, so they are left to a later one.
local function remove(index, members)
  local keys = {}
  for at, member in ipairs(members) do keys[at] = index.key .. ':' .. member end
  local reply = redis.pcall('UNLINK', unpack(keys))
  if type(reply) == 'table' and reply.err then return false end
  redis.call('ZREM', index.key, unpack(members))
  return true
end
