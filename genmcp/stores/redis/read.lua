-- Return events of the log ARGV[4], at most ARGV[6] of them: a position and then ids and data.
--
-- ARGV[5]: the id to start after; "" for the oldest event. ARGV[7]: "1" if it has to be an id of
-- the log, "" if it is a position of a follower, which may be later than its last event. Returns
-- nil if events after it were dropped, or it is not an id of the log.
local log = call('GET', P .. 'l:' .. ARGV[4])
log = log and unpacked(log)
local stream = P .. 'e:' .. ARGV[4]
local counters = call('HMGET', P .. 'meta', 'event', 'forgotten')
if not counters[1] then
  -- The counters of an empty store begin with the time of its first use (tables.lua).
  counters = {text(real), text(real)}
  call('HSET', P .. 'meta', 'event', counters[1], 'forgotten', counters[2], 'layout', LAYOUT)
end
local event, floor = tonumber(counters[1]), tonumber(counters[2])
if log then
  floor = log[1]
  if log[5] <= now then floor = log[2] end
end
local position
if ARGV[5] == '' then
  position = log and floor or event
else
  position = tonumber(ARGV[5])
  if position < floor or (ARGV[7] == '1' and not log) then return false end
  if ARGV[7] == '1' and position > floor
    and #call('XRANGE', stream, text(position) .. '-0', text(position) .. '-0') == 0 then
    return false
  end
end
local rows = {}
if log and log[5] > now then
  rows = call('XRANGE', stream, '(' .. text(position) .. '-0', '+', 'COUNT', ARGV[6])
end
-- A follower that has read everything advances to the present: its position then stays later than
-- any log that is forgotten meanwhile.
if #rows == 0 then return {text(math.max(position, event))} end
local found = {string.sub(rows[#rows][1], 1, -3)}
for _, row in ipairs(rows) do
  found[#found + 1] = string.sub(row[1], 1, -3)
  found[#found + 1] = row[2][2]
end
return found
