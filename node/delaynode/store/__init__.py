"""The timer store of one shard: CommitLog, TimerLog, TimerWheel, due window, ConsumeQueue, checkpoint and groups.

Nothing here knows a network, an event loop or a clock: time is passed in, and slow work (reading chains, flushing,
syncing) is cut into jobs of three steps. `begin_*` captures on the owner's thread, `run()` works on captured data on
any thread, `finish_*` installs on the owner's thread. A `Shard` belongs to one thread; only `run()` may leave it.
"""
