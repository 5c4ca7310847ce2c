-- What the scripts share. All time is the server's, in milliseconds.

local MINUTE_MS = 60000
local MONTH_S = 40 * 24 * 3600 -- a month's figures and holds outlive it, for streams that cross its end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function whole(number)
    return string.format('%.0f', number)
end

-- Amounts: whole nanos as decimal text. A Lua number is exact only to 2^53, nine million units of a currency, so they
-- are computed as {high, low}, in thousand millions: amount = high * 10^9 + low, 0 <= low < 10^9.

local THOUSAND_MILLION = 1000000000

local function carried(high, low)
    local carry = math.floor(low / THOUSAND_MILLION)
    return {high + carry, low - carry * THOUSAND_MILLION}
end

local function amount(text)
    local sign, digits = string.match(text or '', '^(-?)(%d+)$')
    if not digits then
        return {0, 0}
    end
    local high, low = tonumber(string.sub(digits, 1, -10)) or 0, tonumber(string.sub(digits, -9))
    if sign == '-' then
        high, low = -high, -low
    end
    return carried(high, low)
end

local function plus(a, b)
    return carried(a[1] + b[1], a[2] + b[2])
end

local function minus(a, b)
    return carried(a[1] - b[1], a[2] - b[2])
end

local function below(a, b)
    return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2])
end

local function is_positive(a)
    return below({0, 0}, a)
end

local function as_text(a) -- of an amount that is not negative
    if a[1] == 0 then
        return whole(a[2])
    end
    return string.format('%.0f%09.0f', a[1], a[2])
end

-- A month of a key: a hash of `spent` and `version` as the database has them, `held` as the sum of all holds, and one
-- `hold:<request>` each.

local function hold(month, id, nanos) -- nanos '' gives the hold back
    local field = 'hold:' .. id
    local before = redis.call('HGET', month, field)
    if (before or '') == nanos then
        return
    end
    local held = plus(minus(amount(redis.call('HGET', month, 'held')), amount(before)), amount(nanos))
    if is_positive(held) then
        redis.call('HSET', month, 'held', as_text(held))
    else
        redis.call('HDEL', month, 'held')
    end
    if nanos == '' then
        redis.call('HDEL', month, field)
    else
        redis.call('HSET', month, field, nanos)
        redis.call('EXPIRE', month, MONTH_S)
    end
end

-- Take what the database says, if it is newer than what is known; returns what was known of the spending then.
local function take(month, spent, version)
    local known = redis.call('HGET', month, 'version')
    if version == '' or (known and tonumber(known) >= tonumber(version)) then
        return nil
    end
    local before = redis.call('HGET', month, 'spent') or '0'
    redis.call('HSET', month, 'spent', spent, 'version', version)
    redis.call('EXPIRE', month, MONTH_S)
    return before
end

-- A window: the sums of the last minute, in a hash of second -> "sum:last", the time of the second's last addition. A
-- second leaves the window a minute after that, so no minute ever holds more than the limit.

local function add(window, sum)
    local second = whole(math.floor(now / 1000))
    local before = string.match(redis.call('HGET', window, second) or '', '^(%d+):') or '0'
    redis.call('HSET', window, second, whole(tonumber(before) + sum) .. ':' .. whole(now))
    redis.call('PEXPIRE', window, MINUTE_MS)
    return second
end

-- The sum of the last minute, when the last of it was added, and the seconds as {time of the last addition, sum}.
local function read(window)
    local sum, last, seconds = 0, 0, {}
    local found = redis.call('HGETALL', window)
    for at = 1, #found, 2 do
        local counted, latest = string.match(found[at + 1], '^(%d+):(%d+)$')
        counted, latest = tonumber(counted), tonumber(latest)
        if latest <= now - MINUTE_MS then
            redis.call('HDEL', window, found[at])
        else
            sum, last = sum + counted, math.max(last, latest)
            seconds[#seconds + 1] = {latest, counted}
        end
    end
    return {sum = sum, last = last, seconds = seconds}
end

local function taken_back(window, second, sum)
    local before, last = string.match(redis.call('HGET', window, second) or '', '^(%d+):(%d+)$')
    if before then
        redis.call('HSET', window, second, whole(math.max(0, tonumber(before) - sum)) .. ':' .. last)
    end
end

-- Forget the requests whose holds have expired: their process is dead or frozen.
local function forget_expired(holds, tokens_held, month)
    for _, id in ipairs(redis.call('ZRANGEBYSCORE', holds, '-inf', whole(now), 'LIMIT', 0, 1000)) do
        redis.call('ZREM', holds, id)
        redis.call('HDEL', tokens_held, id)
        hold(month, id, '')
    end
end
