"""The timer: TimerLog and TimerWheel, the cascade from hours to minutes, and the due window."""
