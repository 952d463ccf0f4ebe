-- Intervals of a user: members `started,ended,events,clicks` of a sorted set, with `started` as score. They are further
-- apart than the index's limit, the gap, so both times rise from one member to the next.
--
-- A new interval is merged with the stored ones that it touches. Only these are read, the last first, so a user's other
-- intervals cost nothing. Everything is computed before the first write: `group.before` becomes `group.after`.

-- Stored intervals that one call reads.
local READ_AT_ONCE = 10

local function interval_of(text)
  local started, ended, events, clicks = string.match(text, '^(%d+),(%d+),(%d+),(%d+)$')
  if not started then return nil end
  return {
    started = tonumber(started), ended = tonumber(ended), events = tonumber(events), clicks = tonumber(clicks),
    text = text,
  }
end

local function text_of(one)
  return table.concat({digits(one.started), digits(one.ended), digits(one.events), digits(one.clicks)}, ',')
end

-- Merges intervals that are at most `gap` apart; the result is a new list, by time.
local function merged(intervals, gap)
  table.sort(intervals, function(one, other) return one.started < other.started end)
  local result = {}
  for _, one in ipairs(intervals) do
    local last = result[#result]
    if last and one.started - last.ended <= gap then
      last.ended = math.max(last.ended, one.ended)
      last.events = last.events + one.events
      last.clicks = last.clicks + one.clicks
    else
      table.insert(result, {started = one.started, ended = one.ended, events = one.events, clicks = one.clicks})
    end
  end
  return result
end

-- Adds to `stored`, by text, the intervals of the key that touch `new`; returns a member of another form.
local function read_touching(key, new, index, stored)
  local upper = digits(new.ended + index.limit)
  while upper do
    local texts = redis.call('ZREVRANGEBYSCORE', key, upper, '-inf', 'LIMIT', 0, READ_AT_ONCE)
    upper = nil
    for at, text in ipairs(texts) do
      local one = interval_of(text)
      if not one then return text end
      if one.ended < new.started - index.limit then return nil end
      stored[text] = one
      if at == READ_AT_ONCE then upper = '(' .. digits(one.started) end
    end
  end
end

-- Adds the intervals' counts, times `sign`, to the sums by counting index and bucket.
local function add_to_sums(sums, counters, intervals, sign)
  for _, counter in ipairs(counters) do
    for _, one in ipairs(intervals) do
      local start = one.started - one.started % counter.width
      local sum = sums[counter][start] or {intervals = 0, length_ms = 0, events = 0}
      sums[counter][start] = sum
      sum.intervals = sum.intervals + sign
      sum.length_ms = sum.length_ms + sign * (one.ended - one.started)
      sum.events = sum.events + sign * one.events
    end
  end
end

refusal_of['intervals'] = function(index, group)
  local new = {}
  for at = group.first, group.last do
    local one = interval_of(ARGV[at])
    if one.ended >= index.floor then table.insert(new, one) end
  end
  group.late = #new == 0
  if group.late then return nil end
  local refusal = refusal_of_place(index, group.member, group.key)
  if refusal then return refusal end
  new = merged(new, index.limit)
  local stored = {}
  for _, one in ipairs(new) do
    local strange = read_touching(group.key, one, index, stored)
    if strange then return {'misfit', group.key, strange, strange} end
  end
  -- One that retention has removed, even if it is still there, is not merged.
  group.before = {}
  for _, one in pairs(stored) do
    table.insert(group.before, one)
    if one.ended >= index.floor then table.insert(new, one) end
  end
  group.after = merged(new, index.limit)
  for _, one in ipairs(group.after) do
    if math.max(one.events, one.clicks) >= EXACT then return {'amount', group.key, digits(one.started), text_of(one)} end
    group.start = math.max(group.start or 0, one.ended)
  end
  add_to_sums(index.sums, index.counted_by, group.before, -1)
  add_to_sums(index.sums, index.counted_by, group.after, 1)
end

-- Returns the new values of a counting bucket, or a refusal.
local function values_after(counter, key, member, sum)
  local refusal = refusal_of_place(counter, member, key)
  if refusal then return nil, refusal end
  local names, values = {'intervals', 'length_ms', 'events'}, {}
  local known = redis.call('HMGET', key, unpack(names))
  for at, name in ipairs(names) do
    local value = known[at] or '0'
    local after = is_count(value) and tonumber(value) + sum[name]
    if not after or after < 0 or after >= EXACT then return nil, {'misfit', key, name, value} end
    values[name] = after
  end
  return values
end

-- Computes the counting buckets of the intervals that change. A bucket that retention has removed is not counted again.
local function refusal_of_sums(index)
  for counter, sums in pairs(index.sums) do
    for start, sum in pairs(sums) do
      local changes = sum.intervals ~= 0 or sum.length_ms ~= 0 or sum.events ~= 0
      if changes and start >= counter.floor then
        local member = digits(start)
        local key = counter.key .. ':' .. member
        local values, refusal = values_after(counter, key, member, sum)
        if refusal then return refusal end
        table.insert(index.counts, {counter = counter, start = start, member = member, key = key, values = values})
      end
    end
  end
end

-- Removes some of the intervals before the retained ones.
local function remove_old_intervals(index, key)
  if index.floor <= 0 then return end
  local last = redis.call('ZREVRANGEBYSCORE', key, '(' .. digits(index.floor), '-inf', 'LIMIT', 0, 1)[1]
  if not last then return end
  local is_old = interval_of(last).ended < index.floor
  local count = redis.call('ZRANK', key, last) + (is_old and 1 or 0)
  if count > 0 then redis.call('ZREMRANGEBYRANK', key, 0, math.min(count, PIECE) - 1) end
end

add_to['intervals'] = function(index, group)
  for _, one in ipairs(group.before) do redis.call('ZREM', group.key, one.text) end
  for _, one in ipairs(group.after) do redis.call('ZADD', group.key, digits(one.started), text_of(one)) end
  remove_old_intervals(index, group.key)
  group.start = math.max(group.start, tonumber(redis.call('ZSCORE', index.key, group.member) or 0))
end

local function add_sums(index)
  for _, count in ipairs(index.counts) do
    if count.values.intervals == 0 then
      remove(count.counter, {count.member})
    else
      for name, value in pairs(count.values) do redis.call('HSET', count.key, name, digits(value)) end
      redis.call('ZADD', count.counter.key, count.start, count.member)
    end
  end
end
