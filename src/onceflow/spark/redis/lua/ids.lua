-- Ids: hashes `INDEX:START`, id → position of the record that counts, by the time at which the id was first read.
--
-- The ids of a batch are claimed before its first count is written, by position: a claim that is repeated finds its own
-- position, so any attempt at a batch has the same records. `sealed` follows the last claim, and every script that
-- counts requires it. `seal` finds in the sorted set of duplicates a trace of each script that claimed, with a score below
-- all offsets. So if Redis loses a claim before, `seal` is refused; if later, `sealed` and the batch's counts are lost, too.

local function claim_member(claim)
  return 'claim:' .. claim
end

-- The script of this claim has run, and Redis has not lost it. A claim is named by its first and its last offset: another
-- attempt may divide the records in another way.
local function is_claimed(ids, claim)
  return redis.call('ZSCORE', ids.late, claim_member(claim))
end

-- For each group: start of its bucket, number of records, then their ids and their offsets.
local function take_id_groups()
  local groups = {}
  for number = 1, take_number() do
    local group = {start = take_number(), size = take_number(), first = taken + 1}
    group.last = taken + group.size
    taken = taken + 2 * group.size
    groups[number] = group
  end
  return groups
end

-- Calls `call` with the members and keys of the buckets at most a window from a group, the earliest first.
local function near(ids, group, call)
  local span = ids.limit * ids.width
  for start = math.max(0, group.start - span), group.start + span, ids.width do
    local member = digits(start)
    local result = call(member, ids.key .. ':' .. member)
    if result then return result end
  end
end

local function refusal_of_ids(ids, groups)
  local refusal = refusal_of_type(ids.key, 'zset') or refusal_of_type(ids.late, 'zset')
  if refusal then return refusal end
  for _, group in ipairs(groups) do
    refusal = near(ids, group, function(member, key) return refusal_of_place(ids, member, key) end)
    if refusal then return refusal end
  end
end

-- Position by id, of those in the arguments from `first` to `last` that a bucket near the group has.
local function claimed_near(ids, group, first, last)
  local held = {}
  near(ids, group, function(_, key)
    local positions = exists(key) and redis.call('HMGET', key, unpack(ARGV, first, last)) or {}
    for at = first, last do held[ARGV[at]] = held[ARGV[at]] or positions[at - first + 1] end
  end)
  return held
end

-- An id belongs to the first record that claims it; all others are duplicates.
local function claim_ids(ids, partition, group)
  in_pieces(group.first, group.last, function(first, last)
    local held, new, others = claimed_near(ids, group, first, last), {}, {}
    for at = first, last do
      local id, offset = ARGV[at], ARGV[at + group.size]
      local position = partition .. ':' .. offset
      if not held[id] then
        held[id] = position
        table.insert(new, id)
        table.insert(new, position)
      elseif held[id] ~= position then
        table.insert(others, offset)
        table.insert(others, position)
      end
    end
    if #new > 0 then
      redis.call('HSET', ids.key .. ':' .. digits(group.start), unpack(new))
      redis.call('ZADD', ids.key, group.start, digits(group.start))
    end
    if #others > 0 then redis.call('ZADD', ids.late, unpack(others)) end
  end)
end

-- The ids of the batch are claimed, if the sink has ids.
local function refusal_of_unsealed(indexes, digest)
  for _, index in ipairs(indexes) do
    if index.kind == 'ids' and field('sealed') ~= digest then return {'unsealed'} end
  end
end

-- Called by the last script of a batch.
local function complete_ids(indexes)
  for _, index in ipairs(indexes) do
    if index.kind == 'ids' then
      local times = field('ids_next')
      if times ~= '' then redis.call('HSET', MARKER, 'ids_times', times) end
      redis.call('HDEL', MARKER, 'ids_next')
      redis.call('UNLINK', index.late)
      redis.call('HDEL', MARKER, written_field(index.late))
    end
  end
end
