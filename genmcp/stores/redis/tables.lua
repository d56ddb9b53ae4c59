-- Records, logs and accounts. What is loaded here is changed in memory and written by `save`.
local ROW_RETENTION = 3600 * 1000000  -- for which the row of an expired log is retained

local meta
local function load_meta()
  local found = call('HMGET', P .. 'meta', 'top', 'event', 'forgotten', 'entries', 'size')
  -- The counters of an empty store begin with the time, so that a version or an id that was
  -- assigned before the data was lost is not assigned again.
  meta = {
    top = tonumber(found[1] or real), event = tonumber(found[2] or real),
    forgotten = tonumber(found[3] or real), entries = tonumber(found[4] or 0),
    size = tonumber(found[5] or 0),
  }
end

local accounts = {}
local function account(name)
  local found = accounts[name]
  if not found then
    local row = call('HMGET', P .. 'a:' .. name, 'e', 's', 'le', 'ls')
    found = {
      e = tonumber(row[1] or 0), s = tonumber(row[2] or 0),
      le = tonumber(row[3] or 0), ls = tonumber(row[4] or 0),
    }
    accounts[name] = found
  end
  return found
end

local function add(names, entries, size, of_log)
  for _, name in ipairs(names) do
    local each = account(name)
    each.e, each.s, each.changed = each.e + entries, each.s + size, true
    if of_log then each.le, each.ls = each.le + entries, each.ls + size end
  end
end

local function add_total(entries, size)
  meta.entries, meta.size = meta.entries + entries, meta.size + size
end

-- Records

local function find_record(key)
  local row = call('HGET', P .. 'r:' .. key, 'm')
  return row and unpacked(row)
end

local function is_alive(row) return row and (row[2] == 0 or row[2] > now) end

local function remove_record(key, row)
  call('DEL', P .. 'r:' .. key)
  if row[2] > 0 then call('ZREM', P .. 'x', 'r' .. key) end
  for _, label in ipairs(row[5]) do call('ZREM', P .. 'i:' .. label, key) end
  add(row[4], -1, -row[3])
  add_total(-1, -row[3])
  meta.top = math.max(meta.top, row[1])
end

-- Logs. The floor is an id: all events with a later id are present. An empty log stays for an
-- hour with its last id as the floor; after it `forgotten` is the floor of all logs without a row.

local logs = {}  -- false: there is none
local function find_log(name)
  local log = logs[name]
  if log == nil then
    local row = call('GET', P .. 'l:' .. name)
    row = row and unpacked(row)
    log = row and {
      floor = row[1], last = row[2], held = row[3], size = row[4], deadline = row[5],
      accounts = row[6],
    }
    logs[name] = log
  end
  return log
end

local function empty_log(name, log)
  call('UNLINK', P .. 'e:' .. name)
  for _, each in ipairs(log.accounts) do call('ZREM', P .. 'al:' .. each, name) end
  add(log.accounts, -log.held, -log.size, true)
  add_total(-log.held, -log.size)
  log.floor, log.held, log.size, log.accounts, log.changed = log.last, 0, 0, {}, true
end

local function expire_log(name)
  local log = find_log(name)
  if log and log.held > 0 then
    empty_log(name, log)
    log.deadline = now + ROW_RETENTION
    call('ZADD', P .. 'x', text(log.deadline), 'l' .. name)  -- now: another sweep may follow
    return
  end
  call('DEL', P .. 'l:' .. name)
  call('ZREM', P .. 'x', 'l' .. name)
  if log then meta.forgotten = math.max(meta.forgotten, log.last) end
  logs[name] = false
end

-- Remove some entries that have expired; return how many were looked at.
local function sweep(limit)
  local names = call('ZRANGEBYSCORE', P .. 'x', '-inf', text(now), 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    local kind, key = string.sub(name, 1, 1), string.sub(name, 2)
    if kind == 'r' then
      local row = find_record(key)
      if row then remove_record(key, row) else call('ZREM', P .. 'x', name) end
    else
      expire_log(key)
    end
  end
  return #names
end

local function save()
  for name, log in pairs(logs) do
    if log and log.changed then
      call('SET', P .. 'l:' .. name,
        pack({log.floor, log.last, log.held, log.size, log.deadline, log.accounts}))
      call('ZADD', P .. 'x', text(log.deadline), 'l' .. name)
      log.changed = false
    end
  end
  for name, each in pairs(accounts) do
    if each.changed then
      if each.e > 0 then
        call('HSET', P .. 'a:' .. name, 'e', each.e, 's', each.s, 'le', each.le, 'ls', each.ls)
      else
        call('DEL', P .. 'a:' .. name)
      end
      each.changed = false
    end
  end
  call('HSET', P .. 'meta', 'top', text(meta.top), 'event', text(meta.event), 'forgotten',
    text(meta.forgotten), 'entries', meta.entries, 'size', meta.size)
end
