-- Remove at most ARGV[4] expired entries. Returns the time, how many entries were looked at, and
-- {entries and bytes of the account ARGV[5], number of records with the label ARGV[6]}.
local looked = sweep(tonumber(ARGV[4]))
local used = account(ARGV[5])
return {real, looked, {used.e, used.s, call('ZCARD', P .. 'i:' .. ARGV[6])}}
