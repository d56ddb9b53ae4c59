-- Perform the operations of one `Store.apply`, or none of them.
--
-- ARGV[4]: {operations, limits of accounts, limits of the store, bytes that always have room}
--   put: {'p', key, expected version or -1, number of the value, microseconds to live or -1, accounts, labels}
--   delete: {'d', key, expected version or -1}
--   append: {'a', log, number of the data, microseconds to live, events to keep, bytes to keep or
--     -1, accounts}
--   limit of an account: {name, entries or -1, entries by its share, bytes by its share}
--   limit of the store: {entries, bytes}
-- ARGV[5] and so on: values and data, by their numbers.
-- Returns 1, or {'conflict', number of the operation, version}, {'full'}, or {'over', number of
-- the account, entries and bytes in use, entries and bytes that the write adds}.
local request = unpacked(ARGV[4])
local ops, limits, most, always = request[1], request[2], request[3], request[4]
local staged
for _, op in ipairs(ops) do
  if op[1] == 'p' then op[4] = ARGV[op[4]] end
  if op[1] == 'a' then op[3] = ARGV[op[3]] end
end

local function includes(names, name)
  for _, each in ipairs(names) do if each == name then return true end end
  return false
end

-- Check each `expect` with the state that the operations before it leave.
local function stage()
  staged = {}
  for number, op in ipairs(ops) do
    if op[1] ~= 'a' then
      local key = op[2]
      local state = staged[key]
      if not state then
        local row = find_record(key)
        local alive = is_alive(row)
        state = {
          row = row, version = alive and row[1] or 0, past = row and row[1] or 0,
          accounts = alive and row[4] or {},
        }
        staged[key] = state
      end
      if op[3] >= 0 and op[3] ~= state.version then
        return {'conflict', number, text(state.version)}
      end
      if op[1] == 'p' then
        if #op[6] > 0 then
          state.accounts = op[6]
        elseif state.version == 0 then
          state.accounts = {}
        end
        -- A key that is created again continues above all removed versions.
        if state.version == 0 then state.version = math.max(state.past, meta.top) end
        state.version = state.version + 1
        state.past, state.put, state.size = state.version, op, #key + #op[4]
      else
        state.version, state.put = 0, nil
      end
    end
  end
end

-- Return the entries and bytes that the write adds to an account; nil: to the store.
local function growth(name)
  local entries, size = 0, 0
  for _, state in pairs(staged) do
    if state.row and (not name or includes(state.row[4], name)) then
      entries, size = entries - 1, size - state.row[3]
    end
    if state.put and (not name or includes(state.accounts, name)) then
      entries, size = entries + 1, size + state.size
    end
  end
  for _, op in ipairs(ops) do
    if op[1] == 'a' and (not name or includes(op[7], name)) then
      entries, size = entries + 1, size + #op[3]
    end
  end
  return entries, size
end

-- The rules of `Capacity.check`.
local function is_over(limit, dropping)
  local entries, size = growth(limit[1])
  local used = account(limit[1])
  local e, s = used.e + entries, used.s + size
  if dropping then e, s = e - used.le, s - used.ls end
  local many = entries > 0 and ((limit[2] >= 0 and e > limit[2]) or e > limit[3])
  return many or (size > always and s > limit[4])
end

local function is_full()
  local entries, size = growth(nil)
  return (entries > 0 and meta.entries + entries > most[1])
    or (size > 0 and meta.size + size > most[2])
end

local function is_any_over()
  for _, limit in ipairs(limits) do if is_over(limit, false) then return true end end
  return false
end

-- Return what does not fit even if all logs of its account are dropped.
local function excess()
  for number, limit in ipairs(limits) do
    if is_over(limit, true) then
      local used = account(limit[1])
      local entries, size = growth(limit[1])
      return {'over', number, used.e - used.le, used.s - used.ls, entries, size}
    end
  end
end

-- Drop logs of accounts without room, starting with the one that has been idle for longest.
local function make_room()
  for _, limit in ipairs(limits) do
    while is_over(limit, false) do
      local name = call('ZRANGE', P .. 'al:' .. limit[1], 0, 0)[1]
      empty_log(name, find_log(name))
    end
  end
end

local function write_record(key, state)
  local row, op = state.row, state.put
  if not op then
    if row then remove_record(key, row) end
    meta.top = math.max(meta.top, state.past)
    return
  end
  local ttl, labels = op[5], op[7]
  local deadline = 0
  if ttl >= 0 then deadline = now + ttl end
  local had = {}
  if row then
    add(row[4], -1, -row[3])
    add_total(-1, -row[3])
    for _, label in ipairs(row[5]) do had[label] = true end
  end
  add(state.accounts, 1, state.size)
  add_total(1, state.size)
  call('HSET', P .. 'r:' .. key, 'v', op[4],
    'm', pack({state.version, deadline, state.size, state.accounts, labels}))
  if deadline > 0 then
    call('ZADD', P .. 'x', text(deadline), 'r' .. key)
  elseif row and row[2] > 0 then
    call('ZREM', P .. 'x', 'r' .. key)
  end
  for _, label in ipairs(labels) do
    if not had[label] then call('ZADD', P .. 'i:' .. label, 0, key) end
    had[label] = nil
  end
  for label in pairs(had) do call('ZREM', P .. 'i:' .. label, key) end
end

-- Return how many of the oldest events to drop to free some bytes, but never the newest event.
local function count_oldest(name, held, bytes)
  local count, start = 0, '-'
  while bytes > 0 and count < held - 1 do
    local page = call('XRANGE', P .. 'e:' .. name, start, '+', 'COUNT', 50)
    for _, event in ipairs(page) do
      if bytes <= 0 or count >= held - 1 then break end
      bytes, count, start = bytes - #event[2][2], count + 1, '(' .. event[1]
    end
  end
  return count
end

local function append(op)
  local name, data, ttl, keep, keep_bytes, names = op[2], op[3], op[4], op[5], op[6], op[7]
  local log = find_log(name)
  if not log then
    log = {floor = meta.forgotten, last = 0, held = 0, size = 0, deadline = 0, accounts = {}}
    logs[name] = log
  elseif log.deadline <= now and log.held > 0 then
    empty_log(name, log)
  end
  meta.event = meta.event + 1
  call('XADD', P .. 'e:' .. name, text(meta.event) .. '-0', 'd', data)
  log.held, log.size, log.last = log.held + 1, log.size + #data, meta.event
  add_total(1, #data)
  if #log.accounts == 0 then  -- the first owner applies until the log is empty
    log.accounts = names
    add(names, log.held, log.size, true)
  else
    add(log.accounts, 1, #data, true)
  end
  local excess = log.held - keep
  if keep_bytes >= 0 and log.size > keep_bytes then
    excess = math.max(excess, count_oldest(name, log.held, log.size - keep_bytes))
  end
  if excess > 0 then
    local dropped = call('XRANGE', P .. 'e:' .. name, '-', '+', 'COUNT', excess)
    local size = 0
    for _, event in ipairs(dropped) do size = size + #event[2][2] end
    log.floor = tonumber(string.sub(dropped[#dropped][1], 1, -3))
    call('XTRIM', P .. 'e:' .. name, 'MAXLEN', log.held - excess)
    log.held, log.size = log.held - excess, log.size - size
    add(log.accounts, -excess, -size, true)
    add_total(-excess, -size)
  end
  log.deadline, log.changed = now + ttl, true
end

-- What only deletes is not rejected while the memory is full.
local only_deletes = #ops > 0
for _, op in ipairs(ops) do only_deletes = only_deletes and op[1] == 'd' end
load_meta()
local failure = stage()
if failure then return failure end
if is_any_over() or is_full() then
  -- Expired entries still count: remove them before the write is rejected.
  local sweeps = 0
  while sweeps < 10 and sweep(500) == 500 do sweeps = sweeps + 1 end
  failure = stage() or (is_full() and {'full'}) or excess()
  if failure then
    save()
    return failure
  end
  make_room()
end
if only_deletes then allow_full_memory() end
for key, state in pairs(staged) do write_record(key, state) end
local written = {}
for _, op in ipairs(ops) do
  if op[1] == 'a' then
    append(op)
    written[op[2]] = true
  end
end
save()
for name in pairs(written) do
  local log = logs[name]
  for _, each in ipairs(log.accounts) do call('ZADD', P .. 'al:' .. each, text(log.last), name) end
  call('PUBLISH', P .. 'w:' .. name, '')
end
return 1
