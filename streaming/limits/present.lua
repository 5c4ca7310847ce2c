-- What a key uses now. KEYS requests, tokens: windows; leases; month.
-- Returns {requests of the last minute, until they are all back (ms), tokens, the same, requests under way, nanos held}

local requests, tokens, leases, month = unpack(KEYS)

local function told(window)
    return window.sum, window.sum > 0 and math.max(0, window.last + MINUTE_MS - now) or 0
end

local requests_sum, requests_reset = told(read(requests))
local tokens_sum, tokens_reset = told(read(tokens))
local running = redis.call('ZCOUNT', leases, '(' .. whole(now), '+inf')
return {
    requests_sum, requests_reset, tokens_sum, tokens_reset, running, redis.call('HGET', month, 'held') or '0'
}
