-- What a script does with the buckets of all indexes: check, add, remove.

-- Adds the amounts of a late group's rows to `lates`, the sums by key.
local function refusal_of_late(index, group, lates)
  group.late = true
  for at = group.first, group.last do
    if index.late and (index.late_name == '' or index.late_name == ARGV[at]) then
      local sum = (lates[index.late] or 0) + (tonumber(amount_at(group, at)) or EXACT)
      if math.abs(sum) >= EXACT then return {'amount', index.late, 'late', amount_at(group, at)} end
      lates[index.late] = sum
    end
  end
end

local function refusal_of_group(index, group, lates)
  if group.start and group.start < index.floor then return refusal_of_late(index, group, lates) end
  return refusal_of_place(index, group.member, group.key) or refusal_of[index.kind](index, group)
end

-- Sets for each index the floor, the score below which it keeps nothing, and the indexes that count its intervals.
local function refusal_of_indexes(indexes)
  local newest = tonumber(field('newest_ms'))
  for number, index in ipairs(indexes) do
    index.floor = newest and index.retention and newest - index.retention or 0
    index.counted_by = {unpack(indexes, number + 1, number + index.counters)}
    index.sums, index.counts = {}, {}
    for _, counter in ipairs(index.counted_by) do index.sums[counter] = {} end
    local refusal = refusal_of_type(index.key, 'zset')
    if refusal then return refusal end
  end
end

local function refusal_of_buckets(indexes)
  local refusal = refusal_of_indexes(indexes)
  if refusal then return refusal end
  local lates = {}
  for _, index in ipairs(indexes) do
    for _, group in ipairs(index.groups) do
      refusal = refusal_of_group(index, group, lates)
      if refusal then return refusal end
    end
    refusal = refusal_of_sums(index)
    if refusal then return refusal end
  end
  for key, sum in pairs(lates) do
    refusal = refusal_of_type(key, 'hash') or refusal_of_count(key, 'late', digits(sum))
    if refusal then return refusal end
  end
  indexes.lates = lates
end

local function raise_to(name, newest)
  if newest > (tonumber(field(name)) or -1) then redis.call('HSET', MARKER, name, digits(newest)) end
end

-- Adds all rows that are not late; the marker's field `name` gets the newest time in them.
local function add_buckets(indexes, name)
  local newest = -1
  for _, index in ipairs(indexes) do
    for _, group in ipairs(index.groups) do
      if not group.late then
        add_to[index.kind](index, group)
        redis.call('ZADD', index.key, group.start, group.member)
        newest = math.max(newest, group.start)
      end
    end
    add_sums(index)
  end
  for key, sum in pairs(indexes.lates) do redis.call('HINCRBY', key, 'late', digits(sum)) end
  raise_to(name, newest)
end

-- Called after a script's other writes. Every index is then without retained buckets, or exists.
local function remove_old(indexes)
  local newest, left = tonumber(field('newest_ms')), REMOVED_MAX
  for _, index in ipairs(indexes) do
    local members = {''}
    while newest and index.retention and left > 0 and #members > 0 do
      local below = '(' .. digits(newest - index.retention)
      members = redis.call('ZRANGEBYSCORE', index.key, '-inf', below, 'LIMIT', 0, math.min(left, PIECE))
      if #members > 0 and not remove(index, members) then members = {} end
      left = left - #members
    end
    if not exists(index.key) then redis.call('HDEL', MARKER, written_field(index.key)) end
  end
end
