-- Records, logs and accounts. All changes are made in memory (`begin`), and written by `save`, so
-- that a write that turns out to have no room is given up by not saving it.
local ROW_RETENTION = 3600 * 1000000  -- for which the row of an expired log is retained

local meta, accounts, records, logs, writes
local function begin()
  local found = call('HMGET', P .. 'meta', 'top', 'event', 'forgotten', 'layout')
  if found[2] and found[4] ~= LAYOUT then
    error('the keys that begin with ' .. P .. ' were written by another version of genmcp: '
      .. 'delete them, or choose another prefix')
  end
  -- The counters of an empty store begin with the time, so that a version or an id that was
  -- assigned before the data was lost is not assigned again.
  meta = {
    top = tonumber(found[1] or real), event = tonumber(found[2] or real),
    forgotten = tonumber(found[3] or real),
  }
  accounts, records, logs, writes = {}, {}, {}, {}
end

local function later(...) writes[#writes + 1] = {...} end

-- The usage of an account: of entries `e` and bytes `s`, and what they were before.
local function account(name)
  local found = accounts[name]
  if not found then
    local row = call('HMGET', P .. 'a:' .. name, 'e', 's')
    local e, s = tonumber(row[1] or 0), tonumber(row[2] or 0)
    found = {e = e, s = s, old_e = e, old_s = s}
    accounts[name] = found
  end
  return found
end

-- Add to the accounts that count an entry of a client, as in accounts.py.
local function add(client, entries, size)
  local names = {''}
  if client ~= '' then names[2] = client end
  if string.sub(client, 1, 8) == 'address ' then names[3] = 'anonymous' end
  for _, name in ipairs(names) do
    local each = account(name)
    each.e, each.s = each.e + entries, each.s + size
  end
end

-- Records

local function find_record(key)
  local row = records[key]
  if row == nil then
    row = call('HGET', P .. 'r:' .. key, 'm')
    row = row and unpacked(row)
    records[key] = row
  end
  return row
end

local function remove_record(key, row)
  later('DEL', P .. 'r:' .. key)
  if row[2] > 0 then later('ZREM', P .. 'x', 'r' .. key) end
  for _, label in ipairs(row[5]) do later('ZREM', P .. 'i:' .. label, key) end
  add(row[4], -1, -row[3])
  meta.top = math.max(meta.top, row[1])
  records[key] = false
end

-- Logs. The floor is an id: all events with a later id are present. An empty log stays for an
-- hour with its last id as the floor; after it `forgotten` is the floor of all logs without a row.

local function find_log(name)  -- false: there is none
  local log = logs[name]
  if log == nil then
    local row = call('GET', P .. 'l:' .. name)
    row = row and unpacked(row)
    log = row and {
      floor = row[1], last = row[2], held = row[3], size = row[4], deadline = row[5],
      client = row[6], added = {},
    }
    logs[name] = log
  end
  return log
end

local function empty_log(name, log)
  later('UNLINK', P .. 'e:' .. name)
  add(log.client, -log.held, -log.size)
  log.floor, log.held, log.size, log.client, log.changed = log.last, 0, 0, '', true
end

-- Drop the oldest event of a log.
local function shorten(name, log)
  local id, size
  local stored = call('XRANGE', P .. 'e:' .. name, '(' .. text(log.floor) .. '-0', '+', 'COUNT', 1)
  if #stored > 0 then
    id, size = tonumber(string.sub(stored[1][1], 1, -3)), #stored[1][2][2]
  else
    local event = table.remove(log.added, 1)
    id, size = event[1], event[2]
  end
  log.floor, log.held, log.size, log.shortened = id, log.held - 1, log.size - size, true
  add(log.client, -1, -size)
end

local function expire_log(name)
  local log = find_log(name)
  if log and log.held > 0 then
    empty_log(name, log)
    log.deadline = now + ROW_RETENTION
    return
  end
  later('DEL', P .. 'l:' .. name)
  later('ZREM', P .. 'x', 'l' .. name)
  if log then meta.forgotten = math.max(meta.forgotten, log.last) end
  logs[name] = false
end

local function save()
  for _, command in ipairs(writes) do call(unpack(command)) end
  for name, log in pairs(logs) do
    if log and log.changed then
      if log.shortened then
        call('XTRIM', P .. 'e:' .. name, 'MINID', text(log.floor + 1) .. '-0')
      end
      call('SET', P .. 'l:' .. name,
        pack({log.floor, log.last, log.held, log.size, log.deadline, log.client}))
      call('ZADD', P .. 'x', text(log.deadline), 'l' .. name)
    end
  end
  for name, each in pairs(accounts) do
    if each.e == 0 then
      call('DEL', P .. 'a:' .. name)
    elseif each.e ~= each.old_e or each.s ~= each.old_s then
      call('HSET', P .. 'a:' .. name, 'e', each.e, 's', each.s)
    end
  end
  call('HSET', P .. 'meta', 'top', text(meta.top), 'event', text(meta.event), 'forgotten',
    text(meta.forgotten), 'layout', LAYOUT)
end

-- Remove some entries that have expired; return how many were looked at.
local function sweep(limit)
  begin()
  local names = call('ZRANGEBYSCORE', P .. 'x', '-inf', text(now), 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local kind, key = string.sub(name, 1, 1), string.sub(name, 2)
    if kind == 'r' then
      local row = find_record(key)
      if row then remove_record(key, row) else later('ZREM', P .. 'x', name) end
    else
      expire_log(key)
    end
  end
  if #names > 0 then save() end
  return #names
end
