-- The deliveries: ARGV[4] is the operation, ARGV[5] its arguments.
--
--   d:<id>     a delivery: {queue, owner, holder or "", when it is due or its lease expires, number,
--              place}. Places: `w` waits for its delay, `h` is held, `f` is due, or its lease has
--              expired
--   w:<queue>, h:<queue>  sorted sets of ids by time
--   f:<length>:<queue><owner>  sorted set of the due deliveries of an owner by time, and number
--   o:<queue>  sorted set of the owners with due deliveries: the first one is served next, and then
--              moves behind the others
--   s:<queue>  set of the ids in `f` that a worker still holds, because its lease has expired
--   number     counter of deliveries and of turns
local operation, args = ARGV[4], unpacked(ARGV[5])
local PROMOTED = 100  -- deliveries that a claim moves to `f` at most, or as many as it may claim

local function find(id)
  local row = call('GET', P .. 'd:' .. id)
  return row and unpacked(row)
end

local function save(id, row) call('SET', P .. 'd:' .. id, pack(row)) end

local function fifo(queue, owner) return P .. 'f:' .. #queue .. ':' .. queue .. owner end

local function member(id, row) return string.format('%016.0f', row[5]) .. id end

local function take_out(id, row)
  local queue, owner, place = row[1], row[2], row[6]
  if place ~= 'f' then
    call('ZREM', P .. place .. ':' .. queue, id)
    return
  end
  call('ZREM', fifo(queue, owner), member(id, row))
  if row[3] ~= '' then call('SREM', P .. 's:' .. queue, id) end
  if call('EXISTS', fifo(queue, owner)) == 0 then call('ZREM', P .. 'o:' .. queue, owner) end
end

local function make_due(id, row)
  local queue, owner = row[1], row[2]
  row[6] = 'f'
  call('ZADD', fifo(queue, owner), text(row[4]), member(id, row))
  if row[3] ~= '' then call('SADD', P .. 's:' .. queue, id) end
  call('ZADD', P .. 'o:' .. queue, 'NX', call('INCR', P .. 'number'), owner)
  save(id, row)
end

local function put_at(id, row, place, time)
  row[4], row[6] = time, place
  call('ZADD', P .. place .. ':' .. row[1], text(time), id)
  save(id, row)
end

local function remove(id, row)
  take_out(id, row)
  call('DEL', P .. 'd:' .. id)
end

-- Wake the workers of a queue, and those of all queues.
local function announce(queue)
  call('PUBLISH', P .. 'n:' .. queue, '')
  call('PUBLISH', P .. 'n', '')
end

-- Move deliveries whose delay is over, and those whose lease has expired, to `f`.
local function promote(queue, limit)
  for _, place in ipairs({'w', 'h'}) do
    local key = P .. place .. ':' .. queue
    for _, id in ipairs(call('ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', 0, limit)) do
      local row = find(id)
      call('ZREM', key, id)
      make_due(id, row)
    end
  end
end

-- Extend expired leases, so that their holders keep the deliveries.
local function extend_expired(queue, until_)
  local expired = call('SMEMBERS', P .. 's:' .. queue)
  for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'h:' .. queue, '-inf', text(now))) do
    expired[#expired + 1] = id
  end
  for _, id in ipairs(expired) do
    local row = find(id)
    take_out(id, row)
    put_at(id, row, 'h', until_)
  end
end

-- Return the owner to serve next, its first delivery, and since when that is due.
local function first_of(queue, is_full, full)
  for _, owner in ipairs(call('ZRANGE', P .. 'o:' .. queue, 0, full)) do
    if not is_full(owner) then
      local head = call('ZRANGE', fifo(queue, owner), 0, 0, 'WITHSCORES')
      return owner, string.sub(head[1], 17), tonumber(head[2])
    end
  end
end

local function claim(queues, holder, lease, limit, extension, started, share, held)
  -- A claim that was under way for long: other workers may have been unable to renew their leases.
  if real - started > lease / 3 then extension = lease end
  local counts, full = {}, 0
  for owner, count in pairs(held) do
    counts[owner] = count
    if count >= share then full = full + 1 end
  end
  local function is_full(owner)
    return share >= 0 and owner ~= '' and (counts[owner] or 0) >= share
  end
  for _, queue in ipairs(queues) do
    if extension > 0 then extend_expired(queue, now + extension) end
    promote(queue, math.max(limit, PROMOTED))
  end
  local claimed = {}
  while #claimed < 3 * limit do
    local first, queue, owner, id
    for _, each in ipairs(queues) do
      local of, head, due = first_of(each, is_full, full)
      if of and (not first or due < first) then first, queue, owner, id = due, each, of, head end
    end
    if not first then break end
    local row = find(id)
    take_out(id, row)
    row[3] = holder
    put_at(id, row, 'h', now + lease)
    call('ZADD', P .. 'o:' .. queue, 'XX', call('INCR', P .. 'number'), owner)
    counts[owner] = (counts[owner] or 0) + 1
    if is_full(owner) then full = full + 1 end
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = queue
    claimed[#claimed + 1] = owner
  end
  return claimed
end

local function next_due(queues, owners)
  local is_full, full, first = {}, #owners, nil
  for _, owner in ipairs(owners) do is_full[owner] = true end
  for _, queue in ipairs(queues) do
    if first_of(queue, function(owner) return is_full[owner] end, full) then return 0 end
    for _, place in ipairs({'w', 'h'}) do
      local head = call('ZRANGE', P .. place .. ':' .. queue, 0, 0, 'WITHSCORES')
      if head[2] then first = math.min(first or math.huge, tonumber(head[2])) end
    end
  end
  return first and math.max(0, first - now) or false
end

local function backlog(queue)
  local due = now
  local function look(key)
    local head = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if head[2] then due = math.min(due, tonumber(head[2])) end
  end
  local held = P .. 'h:' .. queue
  local waiting = call('ZCARD', P .. 'w:' .. queue) + call('ZCOUNT', held, '-inf', text(now))
  look(P .. 'w:' .. queue)
  look(held)
  for _, owner in ipairs(call('ZRANGE', P .. 'o:' .. queue, 0, -1)) do
    waiting = waiting + call('ZCARD', fifo(queue, owner))
    look(fifo(queue, owner))
  end
  return {waiting, call('ZCOUNT', held, '(' .. text(now), '+inf'), now - due}
end

if operation == 'put' then
  local id, queue, delay, owner = args[1], args[2], args[3], args[4]
  if call('EXISTS', P .. 'd:' .. id) == 1 then return 0 end
  allow_full_memory()
  local row = {queue, owner, '', now + delay, call('INCR', P .. 'number'), ''}
  if delay > 0 then put_at(id, row, 'w', row[4]) else make_due(id, row) end
  announce(queue)
  return 1
elseif operation == 'claim' then
  allow_full_memory()
  return claim(args[1], args[2], args[3], args[4], args[5], args[6], args[7], args[8])
elseif operation == 'next_due' then
  return next_due(args[1], args[2])
elseif operation == 'backlog' then
  return backlog(args[1])
elseif operation == 'cancel' then
  local row = find(args[1])
  if row then
    remove(args[1], row)
    announce(row[1])
  end
  return 1
end
-- The operations of a holder: renew, lost, release, drop.
local holder, lease, lost = args[1], args[3], {}
if operation ~= 'lost' then allow_full_memory() end
for _, id in ipairs(args[2]) do
  local row = find(id)
  if not row or row[3] ~= holder then
    lost[#lost + 1] = id
  elseif operation == 'renew' then
    take_out(id, row)
    put_at(id, row, 'h', now + lease)
  elseif operation == 'release' then
    take_out(id, row)
    row[3], row[4] = '', now
    make_due(id, row)
    announce(row[1])
  elseif operation == 'drop' then
    remove(id, row)
  end
end
return lost
