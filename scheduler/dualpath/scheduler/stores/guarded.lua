-- The one script of the Redis store. Each verb checks who asks, then does as it is told: no rule of scheduling lives here.
--
-- KEYS  1 tenure           token of the owner, without expiry: an expired lease that nobody took may still be used
--       2 lease            name of the owner, expires; while it is there nobody else becomes owner
--       3 epoch            rises with each owner
--       4 writes           number of the last write of this tenure
--       5 changes_applied  change sets ever applied
--       6 owner            name of the owner, without expiry
--       7...               what operations name by their place in KEYS
-- ARGV  1 verb, 2 token, then
--       acquire  owner, unique part of the new token, lease in ms   -> {epoch} or {0, ms left, owner}
--       renew    lease in ms, last number known as applied          -> 1
--       release                                                     -> 1, or 0 where the token is not the owner's
--       read     command, arguments...; runs on KEYS[7]             -> what the command answers
--       write    number, last number known as applied, change sets, operations...
--                                                                    -> 1, or 0 where this number was applied before
-- An operation is: command, place in KEYS, count of arguments, arguments... Beside the commands of Redis there is APPEND,
-- which adds a member after the last of a sorted set unless it is there. A script cannot roll back, so operations are
-- those that only fail before the first write (memory, disk, rights) or where a key is not of our making (its type).

local verb, token = ARGV[1], ARGV[2]
local owner_token = redis.call('GET', KEYS[1])

if verb == 'acquire' then
  local owner = redis.call('GET', KEYS[2])
  if owner and owner ~= ARGV[3] then
    return {0, redis.call('PTTL', KEYS[2]), owner}
  end
  local epoch = redis.call('INCR', KEYS[3])
  redis.call('SET', KEYS[1], string.format('%d:%s', epoch, ARGV[4]))
  redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[5])
  redis.call('SET', KEYS[4], 0)
  redis.call('SET', KEYS[6], ARGV[3])
  return {epoch}
end

if owner_token ~= token then
  if verb == 'release' then
    return 0
  end
  -- The epoch only: the rest of the token is what nobody else may know.
  local holder = owner_token and 'epoch ' .. string.match(owner_token, '^%d*') or 'nobody'
  return redis.error_reply('STALE the cell belongs to ' .. holder)
end

-- A store that fell back behind what it had answered (a replica that lagged, a cut AOF) is not what the owner remembers.
local last = tonumber(redis.call('GET', KEYS[4]) or 0)
local known = (verb == 'renew' or verb == 'write') and tonumber(ARGV[4]) or 0
if last < known then
  return redis.error_reply('LOST write ' .. known .. ', it is at write ' .. last)
end

if verb == 'renew' then
  redis.call('SET', KEYS[2], redis.call('GET', KEYS[6]), 'PX', ARGV[3])
  return 1
end

if verb == 'release' then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end

if verb == 'read' then
  return redis.call(ARGV[3], KEYS[7], unpack(ARGV, 4))
end

-- A write of a broken connection may arrive after later ones. It must not count then, nor may its repetition count twice.
local number = tonumber(ARGV[3])
if number == last then
  redis.call('SET', KEYS[4], ARGV[3]) -- WAIT counts only replicas that have the last write of *this* connection
  return 0
end
if number < last then
  return redis.error_reply('LATE write ' .. number .. ' after write ' .. last)
end

local place, count = 6, #ARGV
while place <= count do
  local command, key, arguments = ARGV[place], KEYS[tonumber(ARGV[place + 1])], tonumber(ARGV[place + 2])
  local first = place + 3
  if command == 'APPEND' then
    local tail = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
    redis.call('ZADD', key, 'NX', (tonumber(tail[2]) or 0) + 1, ARGV[first])
  else
    -- At most 2,000 arguments (ARGUMENTS_MAX in redis_keys.py), far from the some 8,000 that unpack can take.
    redis.call(command, key, unpack(ARGV, first, first + arguments - 1))
  end
  place = first + arguments
end
redis.call('SET', KEYS[4], ARGV[3])
redis.call('INCRBY', KEYS[5], ARGV[5])
return 1
