-- A request is over: its lease and holds go, its tokens become the real ones, its month's spending is taken over.
-- Repeating it changes nothing.
--
-- KEYS  tokens, leases, holds, tokens_held; month: of the hold; settled_month: of the bill
-- ARGV  id, tokens used, spent, version. '' stands for not known.
-- Returns what was known to be spent before, or '' where nothing newer was taken over

local tokens, leases, holds, tokens_held, month, settled_month = unpack(KEYS)
local id, used = ARGV[1], tonumber(ARGV[2])

redis.call('ZREM', leases, id)
redis.call('ZREM', holds, id)
local second, held = string.match(redis.call('HGET', tokens_held, id) or '', '^(%d+):(%d+)$')
if second then
    redis.call('HDEL', tokens_held, id)
    held = tonumber(held)
    if used and used < held then
        taken_back(tokens, second, held - used)
    elseif used and used > held then
        add(tokens, used - held)
    end
end
hold(month, id, '')
return take(settled_month, ARGV[3], ARGV[4]) or ''
