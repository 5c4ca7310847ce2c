-- Requests that are still there, of one key and month: their leases and holds begin anew, and holds take their amounts.
--
-- KEYS  leases, holds, month
-- ARGV  lease (ms), then for each request: id, whether it runs ('1' or ''), whether it holds, nanos ('': no budget)

local leases, holds, month = unpack(KEYS)
local lease_ms = tonumber(ARGV[1])
local expiry = whole(now + lease_ms)

for at = 2, #ARGV, 4 do
    local id = ARGV[at]
    if ARGV[at + 1] ~= '' then
        redis.call('ZADD', leases, expiry, id)
    else
        redis.call('ZREM', leases, id)
    end
    if ARGV[at + 2] ~= '' then
        redis.call('ZADD', holds, expiry, id)
    end
    if ARGV[at + 3] ~= '' then
        hold(month, id, ARGV[at + 3])
    end
end
redis.call('PEXPIRE', leases, lease_ms)
redis.call('EXPIRE', holds, MONTH_S)
return 0
