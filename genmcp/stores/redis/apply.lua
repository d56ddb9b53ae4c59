-- Perform the operations of one `Store.apply`, or none of them.
--
-- ARGV[4]: {operations, limits, slack}
--   put: {'p', key, expected version or -1, number of the value, microseconds to live or -1, client, labels}
--   delete: {'d', key, expected version or -1}
--   append: {'a', log, number of the data, microseconds to live, events to keep, bytes to keep or
--     -1, client}
--   limit: {account, entries, bytes}; see `Room` in accounts.py
-- ARGV[5] and so on: values and data, by their numbers.
-- Returns 1, or {'conflict', number of the operation, version}, or {'over', number of the limit,
-- entries and bytes in use}.
local request = unpacked(ARGV[4])
local ops, limits, slack = request[1], request[2], request[3]

-- Put or delete a record; return a failure if its version is not the expected one.
local function write(number, op)
  local key, expected = op[2], op[3]
  local row = find_record(key)
  local alive = row and (row[2] == 0 or row[2] > now)
  local version = alive and row[1] or 0
  if expected >= 0 and expected ~= version then return {'conflict', number, text(version)} end
  if op[1] == 'd' then
    if row then remove_record(key, row) end
    return
  end
  local data, ttl, client, labels = ARGV[op[4]], op[5], op[6], op[7]
  local had = {}
  if row then
    add(row[4], -1, -row[3])
    for _, label in ipairs(row[5]) do had[label] = true end
  end
  if client == '' and alive then client = row[4] end
  -- A key that is created again continues above all removed versions.
  if not alive then version = math.max(row and row[1] or 0, meta.top) end
  local size, deadline = #key + #data, 0
  add(client, 1, size)
  if ttl >= 0 then
    deadline = now + ttl
    later('ZADD', P .. 'x', text(deadline), 'r' .. key)
  elseif row and row[2] > 0 then
    later('ZREM', P .. 'x', 'r' .. key)
  end
  for _, label in ipairs(labels) do
    if not had[label] then later('ZADD', P .. 'i:' .. label, 0, key) end
    had[label] = nil
  end
  for label in pairs(had) do later('ZREM', P .. 'i:' .. label, key) end
  records[key] = {version + 1, deadline, size, client, labels}
  later('HSET', P .. 'r:' .. key, 'm', pack(records[key]), 'v', data)
end

local function append(op)
  local name, data, ttl, keep, keep_bytes, client = op[2], ARGV[op[3]], op[4], op[5], op[6], op[7]
  local log = find_log(name)
  if not log then
    log = {
      floor = meta.forgotten, last = 0, held = 0, size = 0, deadline = 0, client = '', added = {},
    }
    logs[name] = log
  elseif log.deadline <= now and log.held > 0 then
    empty_log(name, log)
  end
  if log.client == '' and client ~= '' then  -- the first one counts for the events before it, too
    add('', -log.held, -log.size)
    add(client, log.held, log.size)
    log.client = client
  end
  meta.event = meta.event + 1
  later('XADD', P .. 'e:' .. name, text(meta.event) .. '-0', 'd', data)
  log.added[#log.added + 1] = {meta.event, #data}
  log.held, log.size, log.last = log.held + 1, log.size + #data, meta.event
  add(log.client, 1, #data)
  while log.held > keep or (keep_bytes >= 0 and log.size > keep_bytes and log.held > 1) do
    shorten(name, log)
  end
  log.deadline, log.changed = now + ttl, true
end

-- Return a failure if an account exceeds its limit, as `genmcp/stores/sqlite/tables.py` has it.
local function excess()
  for number, limit in ipairs(limits) do
    local used = account(limit[1])
    if (used.e > limit[2] and used.e > used.old_e)
      or (used.s > limit[3] and used.s - used.old_s > slack) then
      return {'over', number, used.old_e, used.old_s}
    end
  end
end

-- Perform the operations in memory; return a failure. `shortening`: whether the oldest events of
-- the logs that are appended to may be dropped to make room.
local function attempt(shortening)
  begin()
  for number, op in ipairs(ops) do
    local failure
    if op[1] == 'a' then append(op) else failure = write(number, op) end
    if failure then return failure end
  end
  for _, op in ipairs(shortening and ops or {}) do
    local log = op[1] == 'a' and find_log(op[2])
    while log and log.held > 1 and excess() do shorten(op[2], log) end
  end
  return excess()
end

local failure = attempt(false)
if failure and failure[1] == 'over' then
  -- Expired entries still count: remove them first.
  local sweeps = 0
  while sweeps < 10 and sweep(500) == 500 do sweeps = sweeps + 1 end
  failure = attempt(true)
end
if failure then return failure end
-- What only deletes is not rejected while the memory is full.
local only_deletes = #ops > 0
for _, op in ipairs(ops) do only_deletes = only_deletes and op[1] == 'd' end
if only_deletes then allow_full_memory() end
save()
for name, log in pairs(logs) do
  if log and log.changed then call('PUBLISH', P .. 'w:' .. name, '') end
end
return 1
