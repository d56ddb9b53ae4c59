-- Remove at most ARGV[4] expired entries. Returns the time, how many entries were looked at, and
-- of the account ARGV[5], or the label ARGV[6], what is in use.
load_meta()
local looked = sweep(tonumber(ARGV[4]))
if looked > 0 then save() end
if ARGV[5] ~= '' then
  local used = account(ARGV[5])
  return {real, looked, used.e, used.s}
end
return {real, looked, call('ZCARD', P .. 'i:' .. ARGV[6])}
