-- Return records with the label ARGV[4] after the key ARGV[5]: the key to continue after or "",
-- and then keys, values and versions. At most ARGV[6] keys are looked at. ARGV[7]: "1" if ARGV[5]
-- is a key, "" to start at the first one.
local start = '-'
if ARGV[7] == '1' then start = '(' .. ARGV[5] end
local keys = call('ZRANGEBYLEX', P .. 'i:' .. ARGV[4], start, '+', 'LIMIT', 0, ARGV[6])
local found = {#keys == tonumber(ARGV[6]) and keys[#keys] or ''}
for _, key in ipairs(keys) do
  local record = call('HMGET', P .. 'r:' .. key, 'm', 'v')
  local row = record[1] and unpacked(record[1])
  if row and (row[2] == 0 or row[2] > now) then
    found[#found + 1] = key
    found[#found + 1] = record[2]
    found[#found + 1] = text(row[1])
  end
end
return found
