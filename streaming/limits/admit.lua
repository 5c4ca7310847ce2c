-- One request against all limits of its key: admitted, and then counted in each, or refused and counted in none.
--
-- KEYS  requests, tokens: windows; leases, holds: sorted sets of request -> expiry; tokens_held: request -> hold;
--       month: what is spent and held
-- ARGV  id, lease (ms), requests per minute, tokens per minute, tokens, concurrency, budget, nanos, spent, version,
--       then the requests that have ended though they are not settled yet. '' stands for no limit, and for not known.
-- Returns {verdict, milliseconds to wait, requests left, until they are all back (ms), tokens left, the same}

local requests, tokens, leases, holds, tokens_held, month = unpack(KEYS)
local id, lease_ms = ARGV[1], tonumber(ARGV[2])
local requests_limit, tokens_limit, tokens_asked = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local concurrency, budget, nanos = tonumber(ARGV[6]), ARGV[7], ARGV[8]

-- How long until the window has room for so much more.
local function wait_ms(window, limit, asked)
    local excess = window.sum + asked - limit
    if excess <= 0 then
        return 0
    end
    table.sort(window.seconds, function(a, b) return a[1] < b[1] end)
    for _, second in ipairs(window.seconds) do
        excess = excess - second[2]
        if excess <= 0 then
            return second[1] + MINUTE_MS - now
        end
    end
    return MINUTE_MS
end

local windows = {}

local function answer(verdict, wait)
    local told = {verdict, math.max(wait, 0)}
    for place, limit in ipairs({requests_limit or -1, tokens_limit or -1}) do
        local window = windows[place]
        told[#told + 1] = window and math.max(0, limit - window.sum) or -1
        told[#told + 1] = window and window.sum > 0 and math.max(0, window.last + MINUTE_MS - now) or 0
    end
    return told
end

for at = 11, #ARGV do
    redis.call('ZREM', leases, ARGV[at])
end

local spent
if budget ~= '' then
    take(month, ARGV[9], ARGV[10])
    spent = redis.call('HGET', month, 'spent')
    if not spent then
        return {'unknown', 0, -1, 0, -1, 0}
    end
    spent = amount(spent)
end

local wait = 0
if requests_limit then
    windows[1] = read(requests)
    wait = wait_ms(windows[1], requests_limit, 1)
end
if tokens_limit then
    windows[2] = read(tokens)
    tokens_asked = math.min(tokens_asked, tokens_limit) -- one that is larger than the limit has a minute of its own
    wait = math.max(wait, wait_ms(windows[2], tokens_limit, math.max(tokens_asked, 1)))
end

if spent and not below(spent, amount(budget)) then
    return answer('spent', 0)
end
if windows[1] and wait_ms(windows[1], requests_limit, 1) > 0 then
    return answer('requests', wait)
end
if wait > 0 then
    return answer('tokens', wait)
end

if concurrency then
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', whole(now))
    if redis.call('ZCARD', leases) >= concurrency then
        return answer('concurrency', 1000)
    end
end
if tokens_limit or spent then
    forget_expired(holds, tokens_held, month)
end
if spent then
    local held = amount(redis.call('HGET', month, 'held'))
    if is_positive(held) and below(amount(budget), plus(plus(spent, held), amount(nanos))) then
        return answer('reserved', 1000)
    end
    hold(month, id, nanos)
end

if requests_limit then
    add(requests, 1)
    windows[1].sum, windows[1].last = windows[1].sum + 1, now
end
if tokens_limit then
    local second = add(tokens, tokens_asked)
    windows[2].sum, windows[2].last = windows[2].sum + tokens_asked, now
    redis.call('HSET', tokens_held, id, second .. ':' .. whole(tokens_asked))
    redis.call('EXPIRE', tokens_held, MONTH_S)
end
if concurrency then
    redis.call('ZADD', leases, whole(now + lease_ms), id)
    redis.call('PEXPIRE', leases, lease_ms)
end
if tokens_limit or spent then
    redis.call('ZADD', holds, whole(now + lease_ms), id)
    redis.call('EXPIRE', holds, MONTH_S) -- not the lease: what expired must be found, to be taken off the month
end
return answer('ok', 0)
