-- What the database says a key has spent in a month. KEYS month; ARGV spent, version. Returns as settle does.

return take(KEYS[1], ARGV[1], ARGV[2]) or ''
