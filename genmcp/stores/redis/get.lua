-- Return the value and the version of the record ARGV[4], nil if there is none.
local found = call('HMGET', P .. 'r:' .. ARGV[4], 'm', 'v')
if not found[1] then return false end
local row = unpacked(found[1])
if row[2] > 0 and row[2] <= now then return false end
return {found[2], text(row[1])}
