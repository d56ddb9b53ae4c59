-- Reject all later writes of the connections ARGV[4], ARGV[5] and so on. What they have sent may
-- still be unread, in the buffers of the network and of the server, for as long as those live.
allow_full_memory()
call('ZREMRANGEBYSCORE', P .. 'fences', '-inf', text(real - 3600 * 1000000))
for number = 4, #ARGV do call('ZADD', P .. 'fences', text(real), ARGV[number]) end
return real
