-- Make the record ARGV[4] expire in ARGV[5] microseconds; return whether it exists.
local row = call('HGET', P .. 'r:' .. ARGV[4], 'm')
row = row and unpacked(row)
if not row or (row[2] > 0 and row[2] <= now) then return 0 end
row[2] = now + ARGV[5]
allow_full_memory()
call('HSET', P .. 'r:' .. ARGV[4], 'm', pack(row))
call('ZADD', P .. 'x', text(row[2]), 'r' .. ARGV[4])
return 1
