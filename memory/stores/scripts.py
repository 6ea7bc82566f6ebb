"""The Lua scripts of the Redis session store. Each touches the keys it is given, of one user and so of one slot.

Above: redis. Below: nothing. Arguments are data and never become script text. Times are the server's.
A timeline is a sorted set whose members all have score 0 and so sort as text::

    position|previous|microseconds|session|json       0001767225600000-000003|0001767225600000-000002|…

Not a stream: XDEL and XTRIM only mark entries inside a stream's nodes, and an AOF rewrite writes the marked ones
out again, so that erased text would stay on disk. A sorted set forgets what is removed.
"""

from __future__ import annotations

# Positions: 16 digits of milliseconds, 6 of a number below 1,024; as a score of `ids` both fit into 53 bits.
# Lua writes large numbers as 1.7e+12, hence string.format wherever a number goes out.
_COMMON = """
local function now_ms()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end
local function whole(n) return string.format('%.0f', n) end
local function text(ms, n) return string.format('%016.0f-%06d', ms, n) end
-- The next position of a log: now, and in any case behind its last one.
local function behind(last, now)
  local ms, n = now, 0
  if last ~= '' then
    local last_ms, last_n = tonumber(string.sub(last, 1, 16)), tonumber(string.sub(last, 18))
    if ms <= last_ms then ms, n = last_ms, last_n + 1 end
    if n > 1023 then ms, n = ms + 1, 0 end
  end
  return ms, n
end
-- Once a minute, and for a key that is new: a read of a session in use then writes nothing.
local function touch(session, entries, events, ids, sessions, sid, now, ttl)
  local keys = {session, entries, events, ids}
  local used = redis.call('ZSCORE', sessions, sid)
  local due = not used or now - tonumber(used) > 60000
  for _, key in ipairs(keys) do due = due or redis.call('PTTL', key) == -1 end
  if not due then return end
  redis.pcall('ZADD', sessions, whole(now), sid)  -- a full server still reads
  for _, key in ipairs(keys) do redis.call('EXPIRE', key, ttl + 60) end
  redis.call('EXPIRE', sessions, ttl + 180)  -- an erasure goes by it, so it outlives what it names
end
local function busy(session, writer, now)
  local held = redis.call('HMGET', session, 'writer', 'lease')
  return writer ~= '' and held[1] and held[1] ~= writer and tonumber(held[2] or '0') > now
end
"""

# -> {1, mode, language, 1 if there was a record, erased ones included}, or {0}: somebody else holds the lease
CLAIM = (
    _COMMON
    + """
local session, entries, events, ids, sessions = unpack(KEYS)
local sid, writer, lease_ms, ttl = unpack(ARGV)
ttl = tonumber(ttl)
local now = now_ms()
if busy(session, writer, now) then return {0} end
if writer ~= '' then
  redis.call('HSET', session, 'writer', writer, 'lease', whole(now + tonumber(lease_ms)))
end
touch(session, entries, events, ids, sessions, sid, now, ttl)
local found = redis.call('HMGET', session, 'mode', 'language')
return {1, found[1] or '', found[2] or '', redis.call('EXISTS', ids)}
"""
)

RELEASE = """
if redis.call('HGET', KEYS[1], 'writer') == ARGV[1] then return redis.call('HDEL', KEYS[1], 'writer', 'lease') end
return 0
"""

# -> {stored, position, 1 if there was no record before, erased ones included}; stored -1: somebody else holds the lease
APPEND = (
    _COMMON
    + """
local user, log, pending, active, sessions, session, entries, events, ids = unpack(KEYS)
local uid, sid, writer, ttl, entries_max, events_max, kind, id, us, json, mode, language, event_type,
  switch_id, switch_json, org, agent, user_id, scope_kind, session_id = unpack(ARGV)
ttl, entries_max, events_max = tonumber(ttl), tonumber(entries_max), tonumber(events_max)
local now = now_ms()
if busy(session, writer, now) then return {-1, '', 0} end
local function position_of(score) return text(math.floor(score / 1024), score % 1024) end

local seen = redis.call('ZSCORE', ids, id)
if seen then
  touch(session, entries, events, ids, sessions, sid, now, ttl)
  return {0, position_of(tonumber(seen)), 0}
end

local first = 1 - redis.call('EXISTS', ids)
local before = redis.call('HMGET', session, 'mode', 'detected', 'detected_at')
local was, detected, detected_at = before[1], before[2], before[3]
local known = redis.call('HMGET', user, 'last', 'user')
local last = known[1] or ''

local function put(record_id, body, timeline, kept)
  local ms, n = behind(last, now)
  local position = text(ms, n)
  local member = position .. '|' .. last .. '|' .. us .. '|' .. sid .. '|' .. body
  redis.call('ZADD', log, 0, member)
  redis.call('ZADD', timeline, 0, member)
  redis.call('ZREMRANGEBYRANK', timeline, 0, -(kept + 1))
  redis.call('ZADD', ids, whole(ms * 1024 + n), record_id)
  last = position
  return position
end

local position, stored
if kind == 'event' then
  if event_type == 'mode_switch' and detected and detected == mode then
    redis.call('ZADD', ids, detected_at, id)
    position, stored = position_of(tonumber(detected_at)), 0
  else
    redis.call('HDEL', session, 'detected', 'detected_at')
    position, stored = put(id, json, events, events_max), 1
  end
else
  if was and was ~= mode then
    local at = put(switch_id, switch_json, events, events_max)
    redis.call('HSET', session, 'detected', mode, 'detected_at', redis.call('ZSCORE', ids, switch_id))
  end
  position, stored = put(id, json, entries, entries_max), 1
end

if stored == 1 then
  redis.call('HSET', user, 'last', last)
  if not known[2] then
    redis.call('HSET', user, 'org', org, 'agent', agent, 'user', user_id, 'kind', scope_kind)
  end
  if scope_kind == 'session' then redis.call('PERSIST', user) end
  redis.call('ZADD', pending, 'NX', whole(now), uid)
end
redis.call('HSET', session, 'id', session_id)
if mode ~= '' then redis.call('HSET', session, 'mode', mode) end
if language ~= '' then redis.call('HSET', session, 'language', language) end
redis.call('ZREMRANGEBYRANK', ids, 0, -(entries_max + events_max + 1))
touch(session, entries, events, ids, sessions, sid, now, ttl)
redis.call('ZADD', active, whole(now), uid .. ':' .. sid)
for _, old in ipairs({{active, 2 * ttl}, {sessions, ttl + 120}}) do
  local gone = redis.call('ZRANGEBYSCORE', old[1], '-inf', whole(now - old[2] * 1000), 'LIMIT', 0, 8)
  if #gone > 0 then redis.call('ZREM', old[1], unpack(gone)) end
end
return {stored, position, first}
"""
)

# -> of the newest `limit` members of a session's timeline those that hold `part`, newest first; extends the TTL,
# creates nothing. Bounded as LOG_READ is.
SESSION_READ = (
    _COMMON
    + """
local session, entries, events, ids, sessions, timeline = unpack(KEYS)
local sid, ttl = ARGV[1], tonumber(ARGV[2])
local limit, bytes_max, chunk, part = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
if redis.call('EXISTS', session, entries, events) > 0 then
  touch(session, entries, events, ids, sessions, sid, now_ms(), ttl)
end
local result, looked, bytes = {}, 0, 0
while looked < limit do
  local members = redis.call('ZREVRANGE', timeline, looked, math.min(looked + chunk, limit) - 1)
  if #members == 0 then break end
  for _, member in ipairs(members) do
    if part == '' or string.find(member, part, 1, true) then
      bytes = bytes + #member
      if #result > 0 and bytes > bytes_max then return result end
      table.insert(result, member)
    end
  end
  looked = looked + #members
end
return result
"""
)

# -> {last, epoch, facts, member…}
# A few at a time: one member may have megabytes, so neither is much more looked at than returned, nor is `bytes_max`
# exceeded but by a first member that does so alone.
LOG_READ = """
local user, log = unpack(KEYS)
local after, limit, bytes_max, chunk = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local found = redis.call('HMGET', user, 'last', 'epoch', 'facts')
local result = {found[1] or '', found[2] or '0', found[3] or '0'}
local from = after == '' and 0 or redis.call('ZLEXCOUNT', log, '-', '(' .. after .. '}')
local taken, bytes = 0, 0
while taken < limit do
  local members = redis.call('ZRANGE', log, from + taken, from + math.min(taken + chunk, limit) - 1)
  if #members == 0 then break end
  for _, member in ipairs(members) do
    bytes = bytes + #member
    if taken > 0 and bytes > bytes_max then return result end
    table.insert(result, member)
    taken = taken + 1
  end
end
return result
"""

# A later version of the user's facts. What is kept of a session alone lapses as the rest of it. -> 1 if it is news
ANNOUNCE = """
local user, log = unpack(KEYS)
local version, scope_kind, ttl = unpack(ARGV)
local known = redis.call('HGET', user, 'facts')
if known and tonumber(known) >= tonumber(version) then return 0 end
redis.call('HSET', user, 'facts', version)
if scope_kind == 'session' and redis.call('EXISTS', log) == 0 then redis.call('EXPIRE', user, ttl) end
return 1
"""

_SETTLE = """
local function settle(user, log, pending, uid, scope_kind, ttl)
  local first = redis.call('ZRANGE', log, 0, 0)[1]
  if first then
    redis.call('ZADD', pending, whole(tonumber(string.sub(first, 1, 16))), uid)
    return
  end
  redis.call('ZREM', pending, uid)
  redis.call('HDEL', user, 'org', 'agent', 'user', 'kind')
  if scope_kind == 'session' then redis.call('EXPIRE', user, ttl) end
end
"""

# Trims at most `chunk` records -> how many are left to trim
CONFIRM = (
    _COMMON
    + _SETTLE
    + """
local user, log, pending = unpack(KEYS)
local uid, scope_kind, ttl, through, chunk = unpack(ARGV)
local due = redis.call('ZLEXCOUNT', log, '-', '(' .. through .. '}')
local now = math.min(due, tonumber(chunk))
if now > 0 then
  redis.call('ZREMRANGEBYRANK', log, 0, now - 1)
  settle(user, log, pending, uid, scope_kind, ttl)
end
return due - now
"""
)

# Looks at `chunk` members of one timeline, a `few` at once -> {the last one's position, or '' at the end;
# positions removed…}
ERASE_CHUNK = """
local what, sid, since, after, through, chunk, few = unpack(ARGV)
local result, looked = {''}, 0
while looked < tonumber(chunk) do
  local from = after == '' and '-' or '(' .. after .. '}'
  local members = redis.call('ZRANGEBYLEX', KEYS[1], from, '(' .. through .. '}', 'LIMIT', 0, few)
  for _, member in ipairs(members) do
    local position, us, session = string.match(member, '^([^|]*)|[^|]*|([^|]*)|([^|]*)|')
    position = position or string.sub(member, 1, 23)
    local said = tonumber(us)
    if what == 'all' or (what == 'session' and (session or sid) == sid)
      or (what == 'since' and (not said or said >= tonumber(since))) then
      redis.call('ZREM', KEYS[1], member)
      table.insert(result, position)
    end
    after = position
  end
  if #members < tonumber(few) then return result end
  looked = looked + #members
end
result[1] = after
return result
"""

# A session without records goes, its ids aside: they lapse by themselves, and until then a late repeat of an
# append brings nothing back. -> 1 if it went
ERASE_SESSION = """
local session, entries, events, sessions, active = unpack(KEYS)
local uid, sid = unpack(ARGV)
if redis.call('EXISTS', entries, events) > 0 then
  redis.call('HDEL', session, 'detected', 'detected_at')
  return 0
end
redis.call('DEL', session)
redis.call('ZREM', sessions, sid)
redis.call('ZREM', active, uid .. ':' .. sid)
return 1
"""

# Whoever owns a session: a key of its own, in a slot of its own. -> the owner; with `take`, a session without gets one
OWNER_KEEP = """
local owner, ttl, take = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local found = redis.call('GET', KEYS[1])
if not found and take == '' then return false end
if not found then
  redis.call('SET', KEYS[1], owner, 'EX', ttl + 60)
  return owner
end
if found == owner and redis.call('PTTL', KEYS[1]) < ttl * 1000 then redis.call('EXPIRE', KEYS[1], ttl + 60) end
return found
"""

OWNER_DROP = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""

# The last step of an erasure: of the user stay the epoch and the last position, which other processes go by. Where all
# was erased, facts begin anew: whatever version they have then is news.
ERASE_FINISH = (
    _COMMON
    + _SETTLE
    + """
local user, log, pending = unpack(KEYS)
local uid, scope_kind, ttl, what = unpack(ARGV)
redis.call('HINCRBY', user, 'epoch', 1)
if what == 'all' then redis.call('HDEL', user, 'facts') end
settle(user, log, pending, uid, scope_kind, ttl)
return 1
"""
)
