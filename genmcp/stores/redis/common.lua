-- The beginning of every script: time, fences, counters, and the removal of what has expired.
--
-- All keys of a store begin with KEYS[1], which contains a hash tag: a script may use any of them,
-- also on a Redis Cluster. Times are whole microseconds: a Lua number holds them exactly.
--
--   meta         hash: `top` (the highest version of a removed record), `event` (the last id of an
--                event), `forgotten` (the highest id of a removed log), `layout`
--   r:<key>      a record: hash of `m`, {version, deadline or 0, size, client, labels}, and `v`
--   i:<label>    sorted set of the keys of the records with a label, all with score 0
--   l:<log>      a log: {floor, last, held, size, deadline, client}
--   e:<log>      stream of its events
--   a:<account>  hash of the entries and bytes in use: `e`, `s`
--   x            sorted set of the deadlines of records (r<key>) and logs (l<log>)
--   fences       sorted set of connections that may write nothing more, by the time of the fence
--
-- ARGV[1]: microseconds to add to the time of the server, for tests. ARGV[2]: the connection of a
-- write, "" for a read. ARGV[3]: when the client gives up waiting for the write.
local LAYOUT = '2'  -- of these keys: data of another one is refused (tables.lua)
local P = KEYS[1]
local call, pack, unpacked = redis.call, cmsgpack.pack, cmsgpack.unpack
local clock = call('TIME')
local real = clock[1] * 1000000 + clock[2]
local now = real + ARGV[1]

local function text(number) return string.format('%.0f', number) end

-- A write whose client has given up takes effect no more: another write may have followed it.
if ARGV[2] ~= '' then
  if real > tonumber(ARGV[3]) or call('ZSCORE', P .. 'fences', ARGV[2]) then
    return redis.error_reply('LATE ' .. text(real))
  end
end

-- The error OOM is raised only for the first write of a script, and never for DEL: a script that
-- begins with this may write although the memory is full. For the few bytes of leases.
local function allow_full_memory() call('DEL', P) end
